//! Ends the job if MPI hangs, and answers other ranks that ask what this one does.
//!
//! After ranks have agreed on a call, its data moves in blocking MPI calls,
//! which no deadline can interrupt. This thread notices if a peer stops in the
//! middle and MPI's launcher does not.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use weightloom_gang::{GangError, GangOptions, Signature};

use crate::agree::STANDSTILL;
use crate::comm::{self, Comm};
use crate::roll_call::RollCall;

pub(crate) struct Watchdog {
    watched: Mutex<Watched>,
    pub(crate) roll_call: RollCall,
}

#[derive(Default)]
struct Watched {
    next: u64,
    calls: Vec<(u64, Instant, GangOptions, Watch)>,
}

/// A watched operation, formatted only for the message.
#[derive(Clone, Copy)]
pub(crate) enum Watch {
    Call(Signature),
    Forming,
}

/// Stops watching a call when dropped.
pub(crate) struct Guard<'a> {
    watchdog: &'a Watchdog,
    number: u64,
}

impl Watchdog {
    /// Starts watching. The communicator is used for nothing else.
    pub(crate) fn start(comm: Comm) -> Arc<Self> {
        let watchdog = Arc::new(Self { watched: Mutex::default(), roll_call: RollCall::new(comm) });
        let weak = Arc::downgrade(&watchdog);
        thread::spawn(move || patrol(&weak));
        watchdog
    }

    /// Watches a call until the guard is dropped.
    pub(crate) fn watch(&self, options: GangOptions, what: Watch) -> Guard<'_> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let number = watched.next;
        watched.next += 1;
        watched.calls.push((number, options.deadline(), options, what));
        Guard { watchdog: self, number }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut watched = self.watchdog.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.calls.retain(|(number, ..)| *number != self.number);
    }
}

fn patrol(watchdog: &Weak<Watchdog>) {
    const ROUND: Duration = Duration::from_millis(200);
    let mut looked = Instant::now();
    while let Some(watchdog) = watchdog.upgrade() {
        let since = looked.elapsed();
        looked += since;
        if since > ROUND + STANDSTILL {
            watchdog.extend(since);
        }
        let entered = comm::enter();
        if entered.is_some() {
            watchdog.roll_call.answer();
            if let Some((options, what)) = watchdog.overdue() {
                watchdog.end_job(options, what);
            }
        }
        drop(entered);
        drop(watchdog);
        thread::sleep(ROUND);
    }
}

impl Watchdog {
    /// Gives all calls more time, because this process was stopped for so long.
    fn extend(&self, by: Duration) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.calls.iter_mut().for_each(|(_, deadline, ..)| *deadline += by);
    }

    /// A call that should have ended.
    fn overdue(&self) -> Option<(GangOptions, Watch)> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (.., options, what) = watched.calls.iter().find(|(_, deadline, ..)| *deadline < now)?;
        Some((*options, *what))
    }

    /// Ends the job, unless another thread is about to.
    fn end_job(&self, options: GangOptions, what: Watch) {
        let Some(ranks) = self.roll_call.hung(&[]) else { return };
        let call = match what {
            Watch::Call(signature) => signature.to_string(),
            Watch::Forming => "sub_gang".to_owned(),
        };
        // The job ends here, so this is the last chance to report why.
        let text = match ranks.is_empty() {
            true => format!("error: {call} timed out; ending the job\n"),
            false => {
                let error = GangError::Timeout { ranks, call, after: options.timeout };
                format!("error: {error}; ending the job\n")
            }
        };
        // One write, so that output of other ranks does not interleave.
        let _ = std::io::stderr().write_all(text.as_bytes());
        comm::abort_job(3);
    }
}
