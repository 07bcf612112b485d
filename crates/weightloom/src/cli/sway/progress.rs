//! Progress of a suite, as a bar on the terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weightloom::sway::runner::{Observer, Phase};
use weightloom::sway::{ProbeVerdict, Record};

use super::super::output::{Output, counted};

/// Draws how far a suite has come.
pub(in crate::cli) struct SuiteProgress {
    bar: ProgressBar,
    output: Output,
    /// Answers of the round so far.
    answered: usize,
    judged: usize,
    failed: usize,
    /// Whether answers are cached, for the message of an interrupted run.
    pub(super) caching: Arc<AtomicBool>,
}

impl SuiteProgress {
    /// Draws unless the output is quiet.
    pub(in crate::cli) fn new(output: Output) -> Self {
        let bar = ProgressBar::hidden();
        Self { bar, output, answered: 0, judged: 0, failed: 0, caching: Arc::default() }
    }

    fn start(&mut self, length: Option<u64>, template: &str, message: String) {
        self.bar.finish_and_clear();
        if self.output.is_quiet() {
            return;
        }
        // Draws nothing unless stderr is a terminal.
        self.bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(8));
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▌ "));
        self.bar.set_message(message);
    }
}

impl Observer for SuiteProgress {
    fn phase(&mut self, phase: Phase) {
        match phase {
            Phase::Probing => self.bar.set_message("judging"),
            Phase::Preflight => self.start(None, "{spinner} {msg}", "loading weights".to_owned()),
            Phase::Asking { round, questions, cached } => {
                let mut message = format!("round {}", round + 1);
                if cached > 0 {
                    message = format!("{message}, {} from the cache", counted(cached, "answer"));
                }
                if let Some(listener) = self.output.listener() {
                    self.answered = 0;
                    listener.begin(&message, questions as u64);
                }
                let template = "[{bar:28}] {pos}/{len} answers, {eta} left ({msg})";
                self.start(Some(questions as u64), template, message);
            }
        }
    }

    fn answered(&mut self, done: usize, _of: usize) {
        self.bar.set_position(done as u64);
        if let Some(listener) = self.output.listener() {
            listener.advance(done.saturating_sub(self.answered) as u64);
            self.answered = done;
        }
    }

    fn judged(&mut self, record: &Record) {
        self.judged += 1;
        self.failed += usize::from(matches!(record.verdict, ProbeVerdict::Fail | ProbeVerdict::Error));
        self.bar.set_message(format!("{} judged, {} failed", self.judged, self.failed));
        if let Some(listener) = self.output.listener() {
            listener.status(&format!("{}: {}", record.name, record.verdict));
        }
    }

    fn caching(&mut self) {
        self.caching.store(true, Ordering::Relaxed);
    }
}

impl Drop for SuiteProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
