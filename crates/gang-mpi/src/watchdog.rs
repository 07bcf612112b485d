//! Ends the job if MPI itself hangs.
//!
//! After ranks have agreed on a call, its data moves in blocking MPI calls,
//! which no deadline can interrupt. If a peer stops for good in the middle,
//! and MPI's launcher does not notice, this thread does.

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

/// What is being watched; put into words only if it comes to that.
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
            // The process is about to be ended, so this is the last chance to
            // say why.
            let what = match what {
                Watch::Call(signature) => signature.to_string(),
                Watch::Forming => "forming a sub-gang".to_owned(),
            };
            // In one piece, so that nothing of other ranks comes between.
            let text = format!("error: {what} did not end in time; ending the job\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            comm::abort_job(3);
        }
        drop(watched);
        drop(watchdog);
        thread::sleep(ROUND);
    }
}
