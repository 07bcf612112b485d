//! Reports what an interrupted run has cached.
//!
//! Every answer is on disk as soon as it arrives, so nothing needs saving: the
//! program says so, then ends as the signal would have ended it. A program that
//! called the command has its own signals, and says when to stop.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, unregister};
use signal_hook::{SigId, flag};
use weightloom::sway::runner::CancelFlag;

use super::super::listener::Listener;
use super::super::output::Output;
use super::progress::SuiteProgress;

/// How often the thread polls for signals.
const POLL: Duration = Duration::from_millis(50);

/// Watches for signals until it is dropped.
pub(super) struct Interruption {
    over: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Interruption {
    /// Starts watching. If handlers cannot be installed, signals end the
    /// program without a message. The caller of the command sets `cancel` instead.
    pub(super) fn watch(progress: &SuiteProgress, output: Output, cancel: &CancelFlag) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        if let Some(listener) = output.listener() {
            watch_listener(listener, cancel.clone(), Arc::clone(&over));
            return Self { over, handlers: Vec::new() };
        }
        let mut handlers = Vec::new();
        let mut signals = Vec::new();
        for signal in [SIGINT, SIGTERM] {
            let received = Arc::new(AtomicBool::new(false));
            if let Ok(handler) = flag::register(signal, Arc::clone(&received)) {
                handlers.push(handler);
                signals.push((signal, received));
            }
        }
        let (caching, is_over) = (Arc::clone(&progress.caching), Arc::clone(&over));
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if let Some((signal, _)) =
                    signals.iter().find(|(_, received)| received.load(Ordering::Relaxed))
                {
                    if !output.is_quiet() {
                        let message = match caching.load(Ordering::Relaxed) {
                            true => "interrupted: answers so far are cached; run the same command to resume",
                            false => "interrupted: no answers are cached",
                        };
                        // On a new line below the progress bar.
                        let _ = writeln!(std::io::stderr(), "\n{message}");
                    }
                    let _ = emulate_default_handler(*signal);
                }
                thread::sleep(POLL);
            }
        });
        Self { over, handlers }
    }
}

/// Cancels the run when the caller of the command asks for it.
fn watch_listener(listener: Arc<dyn Listener>, cancel: CancelFlag, is_over: Arc<AtomicBool>) {
    thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            if listener.is_cancelled() {
                cancel.cancel();
            }
            thread::sleep(POLL);
        }
    });
}

impl Drop for Interruption {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}
