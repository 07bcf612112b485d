//! The metric sinks of a run, whose failures do not end it.

use std::fs::File;
use std::io::{self, Write as _};

use super::{Event, MetricsError, Record, Sink};
use crate::extensions::caught;
use crate::warning::Warning;

/// All sinks of a run.
#[derive(Default)]
pub struct Sinks(Vec<Tolerated>);

/// A sink, and whether its failure was reported.
struct Tolerated {
    name: String,
    sink: Box<dyn Sink>,
    failed: bool,
}

impl Sinks {
    /// The given sinks, without names.
    pub fn new(sinks: Vec<Box<dyn Sink>>) -> Self {
        Self::named(sinks.into_iter().map(|sink| ("sink".to_owned(), sink)).collect())
    }

    /// The given sinks with the names of the config.
    pub fn named(sinks: Vec<(String, Box<dyn Sink>)>) -> Self {
        Self(sinks.into_iter().map(|(name, sink)| Tolerated { name, sink, failed: false }).collect())
    }

    /// Stores a record in every sink. Returns a warning for each sink that fails for
    /// the first time; later records are tried again, since a full disk may be cleared.
    pub fn record(&mut self, record: &Record) -> Vec<Warning> {
        self.each(|sink| sink.record(record))
    }

    /// Stores an event in every sink, like [`record`](Self::record).
    pub fn event(&mut self, event: &Event) -> Vec<Warning> {
        self.each(|sink| sink.event(event))
    }

    fn each(&mut self, mut store: impl FnMut(&mut dyn Sink) -> Result<(), MetricsError>) -> Vec<Warning> {
        let mut warnings = Vec::new();
        for Tolerated { name, sink, failed } in &mut self.0 {
            let stored = caught(|| store(&mut **sink))
                .unwrap_or_else(|panic| Err(MetricsError::failed(name, panic.to_string())));
            if let Err(error) = stored
                && !std::mem::replace(failed, true)
            {
                warnings.push(Warning::Metrics { reason: error.to_string() });
            }
        }
        warnings
    }
}

/// Appends all bytes or none: a half-written record would spoil the next one.
pub(super) fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(bytes).inspect_err(|_| {
        // The error of the write is the one to report.
        let _ = file.set_len(before);
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::sync::{Arc, Mutex};

    use super::*;

    /// Counts its records, and fails on some.
    struct Failing {
        count: Arc<Mutex<usize>>,
        fails_on: fn(u64) -> bool,
    }

    impl Sink for Failing {
        fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
            *self.count.lock().unwrap() += 1;
            match (self.fails_on)(record.step) {
                true => Err(MetricsError::NotMetrics { path: "x".into(), line: record.step }),
                false => Ok(()),
            }
        }
    }

    #[test]
    fn a_failing_sink_is_reported_once_and_tried_again() {
        let counts = [Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0))];
        let sink = |at: usize, fails_on: fn(u64) -> bool| {
            Box::new(Failing { count: Arc::clone(&counts[at]), fails_on }) as Box<dyn Sink>
        };
        let mut sinks = Sinks::new(vec![sink(0, |step| step > 1), sink(1, |step| step == 3)]);
        let warnings: Vec<usize> = (1..=5).map(|step| sinks.record(&Record::new(step)).len()).collect();
        assert_eq!(warnings, [0, 1, 1, 0, 0]);
        assert_eq!(counts.map(|count| *count.lock().unwrap()), [5, 5]);
    }
}
