//! Progress bar of reading and writing checkpoints.

use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weightloom::checkpoint::Observer;

use super::listener::Listener;
use super::output::Output;

/// A progress bar on stderr, if that is a terminal and the output is not quiet.
pub(super) struct Progress {
    bar: Mutex<ProgressBar>,
    output: Output,
    listener: Option<Arc<dyn Listener>>,
}

impl Progress {
    pub(super) fn new(output: Output) -> Self {
        Self { bar: Mutex::new(ProgressBar::hidden()), output, listener: output.listener() }
    }

    fn bar(&self) -> ProgressBar {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Observer for Progress {
    fn begin(&self, work: &str, total: u64) {
        if let Some(listener) = &self.listener {
            return listener.begin(work, total);
        }
        if self.output.is_quiet() {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template(
            "{msg} [{bar:32}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▌ "));
        bar.set_message(work.to_owned());
        *self.bar.lock().unwrap_or_else(PoisonError::into_inner) = bar;
    }

    fn advance(&self, bytes: u64) {
        match &self.listener {
            Some(listener) => listener.advance(bytes),
            None => self.bar().inc(bytes),
        }
    }

    fn is_cancelled(&self) -> bool {
        self.listener.as_ref().is_some_and(|listener| listener.is_cancelled())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar().finish_and_clear();
    }
}
