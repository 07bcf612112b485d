//! Ends the job if MPI hangs.
//!
//! After ranks have agreed on a call, its data moves in blocking MPI calls,
//! which no deadline can interrupt. This thread notices if a peer stops in the
//! middle and MPI's launcher does not.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use weightloom_gang::{GangOptions, Signature};

use crate::comm;

#[derive(Default)]
pub(crate) struct Watchdog {
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    calls: Vec<(u64, Instant, Watch)>,
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
    pub(crate) fn start() -> Arc<Self> {
        let watchdog = Arc::new(Self::default());
        let weak = Arc::downgrade(&watchdog);
        thread::spawn(move || patrol(&weak));
        watchdog
    }

    /// Watches a call until the guard is dropped.
    pub(crate) fn watch(&self, options: GangOptions, what: Watch) -> Guard<'_> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let number = watched.next;
        watched.next += 1;
        watched.calls.push((number, options.deadline(), what));
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
    while let Some(watchdog) = watchdog.upgrade() {
        let watched = watchdog.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((.., what)) = watched.calls.iter().find(|(_, deadline, _)| *deadline < now)
            && comm::is_running()
        {
            // The job ends here, so this is the last chance to report why.
            let what = match what {
                Watch::Call(signature) => signature.to_string(),
                Watch::Forming => "forming a sub-gang".to_owned(),
            };
            // One write, so that output of other ranks does not interleave.
            let text = format!("error: {what} timed out; ending the job\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            comm::abort_job(3);
        }
        drop(watched);
        drop(watchdog);
        thread::sleep(ROUND);
    }
}
