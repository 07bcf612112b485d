//! The observer between a run and its caller: writes the trace and collects
//! notes for the report.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use weightloom_errors::FileError;

use crate::record::Record;
use crate::runner::{Observer, Phase, TraceEvent};

pub(super) struct Recorder<'a> {
    inner: &'a mut dyn Observer,
    trace: Option<File>,
    pub(super) notes: Vec<String>,
}

impl<'a> Recorder<'a> {
    /// Opens the trace, if there is one, to append to it.
    pub(super) fn new(inner: &'a mut dyn Observer, trace: Option<&Path>) -> Result<Self, FileError> {
        let open = |path: &Path| {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            opened.map_err(FileError::while_trying_to("write", path))
        };
        Ok(Self { inner, trace: trace.map(open).transpose()?, notes: Vec::new() })
    }
}

impl Observer for Recorder<'_> {
    fn phase(&mut self, phase: Phase) {
        self.inner.phase(phase);
    }

    fn answered(&mut self, done: usize, of: usize) {
        self.inner.answered(done, of);
    }

    fn event(&mut self, event: &TraceEvent) {
        if let Some(file) = &mut self.trace {
            let line = serde_json::to_string(event).unwrap_or_default();
            // One call per line, so that a killed run leaves whole lines.
            if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
                self.trace = None;
                self.note(&format!("the trace ends early: {error}"));
            }
        }
        self.inner.event(event);
    }

    fn judged(&mut self, record: &Record) {
        self.inner.judged(record);
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
        self.inner.note(text);
    }
}
