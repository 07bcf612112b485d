//! Progress of long work, as a bar on a terminal.

use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weightloom::checkpoint::Observer;

use super::output::Output;

/// Shows how far work has come. On anything but a terminal, and for JSON, it
/// shows nothing.
pub(super) struct Progress {
    bar: Mutex<ProgressBar>,
    shown: bool,
}

impl Progress {
    pub(super) fn new(output: Output) -> Self {
        Self { bar: Mutex::new(ProgressBar::hidden()), shown: output == Output::Text }
    }

    fn bar(&self) -> ProgressBar {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Observer for Progress {
    fn begin(&self, work: &str, total: u64) {
        if !self.shown {
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
        self.bar().inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar().finish_and_clear();
    }
}
