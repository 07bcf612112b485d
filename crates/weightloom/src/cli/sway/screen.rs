//! A run as its user sees it while it goes on, and as its trace tells it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weightloom::sway::runner::{Observer, Phase, TraceEvent};
use weightloom::sway::{Record, Verdict};

use super::super::failure::Failure;
use super::super::output::{Output, counted};

/// Shows how far a run has come, and writes its trace.
pub(in crate::cli) struct Screen {
    bar: ProgressBar,
    shown: bool,
    judged: usize,
    failed: usize,
    trace: Option<File>,
    /// What a reader should know afterwards.
    pub(super) notes: Vec<String>,
}

impl Screen {
    /// For a run that is told in some form. A trace goes on where it ended.
    pub(super) fn new(output: Output, trace: Option<&Path>) -> Result<Self, Failure> {
        let open = |path: &Path| {
            OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
                Failure::operational(&error).about(&format!("cannot write {}", path.display()))
            })
        };
        let mut screen = Self::quiet(output);
        screen.trace = trace.map(open).transpose()?;
        Ok(screen)
    }

    /// The same without a trace.
    pub(in crate::cli) fn quiet(output: Output) -> Self {
        let (bar, shown) = (ProgressBar::hidden(), output == Output::Text);
        Self { bar, shown, judged: 0, failed: 0, trace: None, notes: Vec::new() }
    }

    fn begin(&mut self, length: Option<u64>, template: &str, message: String) {
        self.bar.finish_and_clear();
        if !self.shown {
            return;
        }
        // On anything but a terminal nothing is drawn.
        self.bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(8));
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▌ "));
        self.bar.set_message(message);
    }
}

impl Observer for Screen {
    fn phase(&mut self, phase: Phase) {
        match phase {
            Phase::Reading => self.bar.set_message("judging"),
            Phase::Preflight => self.begin(None, "{spinner} {msg}", "reading weights".to_owned()),
            Phase::Asking { round, questions, kept } => {
                let mut message = format!("round {}", round + 1);
                if kept > 0 {
                    message = format!("{message}, {} kept", counted(kept, "answer"));
                }
                let template = "[{bar:28}] {pos}/{len} answers, {eta} left ({msg})";
                self.begin(Some(questions as u64), template, message);
            }
        }
    }

    fn answered(&mut self, done: usize, _of: usize) {
        self.bar.set_position(done as u64);
    }

    fn event(&mut self, event: &TraceEvent) {
        let Some(file) = &mut self.trace else { return };
        let line = serde_json::to_string(event).unwrap_or_default();
        // One call for a line, so that a killed run leaves whole ones.
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            self.trace = None;
            self.notes.push(format!("the trace ends early: {error}"));
        }
    }

    fn judged(&mut self, record: &Record) {
        self.judged += 1;
        self.failed += usize::from(matches!(record.verdict, Verdict::Fail | Verdict::Error));
        self.bar.set_message(format!("{} judged, {} failed", self.judged, self.failed));
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
