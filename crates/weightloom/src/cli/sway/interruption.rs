//! A run that is ended from outside says what is left of it.
//!
//! Every answer is on disk as soon as it is there, so nothing must be saved: the
//! program says so, and ends as the signal would have ended it.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, unregister};
use signal_hook::{SigId, flag};
use weightloom::sway::cache::Cache;

use super::super::output::Output;

/// How often signals are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Watches for signals until it is dropped.
pub(super) struct Interruption {
    over: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Interruption {
    /// Watches for signals. Where that is not possible they end the program
    /// without a word.
    pub(super) fn watch(cache: Option<&Cache>, output: Output) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut handlers = Vec::new();
        let mut signals = Vec::new();
        for signal in [SIGINT, SIGTERM] {
            let came = Arc::new(AtomicBool::new(false));
            if let Ok(handler) = flag::register(signal, Arc::clone(&came)) {
                handlers.push(handler);
                signals.push((signal, came));
            }
        }
        let words = match cache.is_some_and(Cache::writes) {
            true => "interrupted: what was answered is kept, and the same command goes on from there",
            false => "interrupted: nothing is kept",
        };
        let is_over = Arc::clone(&over);
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if let Some((signal, _)) = signals.iter().find(|(_, came)| came.load(Ordering::Relaxed)) {
                    if output == Output::Text {
                        // Behind the bar, which stays where it was.
                        let _ = writeln!(std::io::stderr(), "\n{words}");
                    }
                    let _ = emulate_default_handler(*signal);
                }
                thread::sleep(LOOK);
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
