//! Reports what an interrupted run has cached.
//!
//! Every answer is on disk as soon as it arrives, so nothing needs saving: the
//! program says so, then ends as the signal would have ended it.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, unregister};
use signal_hook::{SigId, flag};

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
    /// program without a message.
    pub(super) fn watch(progress: &SuiteProgress, output: Output) -> Self {
        let over = Arc::new(AtomicBool::new(false));
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

impl Drop for Interruption {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}
