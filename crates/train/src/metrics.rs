//! What a run tells of itself while it goes on.
//!
//! A [`Record`] is what is known of one step. A [`Sink`] keeps records: as lines
//! of JSON ([`Jsonl`]), or as TensorBoard's event files ([`TensorBoard`]). A
//! [`Meter`] measures speed from tokens and seconds that it is given; nothing
//! here looks at a clock except to date TensorBoard's events.
//!
//! A run that is resumed from a checkpoint of step `n` does the steps behind it
//! again. Sinks are opened with that `n` and forget what came after it, so that
//! no step is told twice.

mod crc32c;
mod error;
mod event;
mod jsonl;
mod memory;
mod meter;
mod tensorboard;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};

pub use error::MetricsError;
pub use jsonl::Jsonl;
pub use memory::{Memory, peak_memory};
pub use meter::{Meter, Reading};
pub use tensorboard::TensorBoard;

use crate::config::LoggingConfig;

/// What is known of one step. What was not measured is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Which step, counted from 1.
    pub step: u64,
    /// How often everything has been read, with what has been read of the
    /// current time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// The mean loss of the step's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The learning rate that the step was taken with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// The norm of all gradients together, before they were clipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Tokens that have been trained on since the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens in a second, over the last steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// The share of what the machine can compute that the model's own
    /// arithmetic takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// The most bytes that this process has had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// How long the step took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Other numbers, by name: `eval/loss`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "numbers")]
    pub scalars: BTreeMap<String, f64>,
    /// Texts, by name: `sample/0`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<String, String>,
}

impl Record {
    /// Nothing but which step it is.
    pub fn new(step: u64) -> Self {
        Self { step, ..Self::default() }
    }

    /// All numbers by name; those of training itself begin with `train/`.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let own = [
            ("train/epoch", self.epoch),
            ("train/loss", self.loss),
            ("train/learning_rate", self.learning_rate),
            ("train/gradient_norm", self.gradient_norm),
            ("train/tokens", self.tokens.map(|tokens| tokens as f64)),
            ("train/tokens_per_second", self.tokens_per_second),
            ("train/mfu", self.mfu),
            ("train/memory", self.memory.map(|bytes| bytes as f64)),
            ("train/seconds", self.seconds),
        ];
        let other = self.scalars.iter().map(|(name, value)| (name.as_str(), *value));
        own.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(other)
    }
}

/// JSON has no word for what is not a number, so that is written as `null`.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let read = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(read.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}

/// Something that keeps records. What it was given is on disk, or at least with
/// the system, when a call returns: a run may end at any time.
pub trait Sink: Send {
    /// Keeps a record.
    fn record(&mut self, record: &Record) -> Result<(), MetricsError>;
}

/// Several sinks: each gets everything. The first failure is told after all
/// have been tried.
impl Sink for Vec<Box<dyn Sink>> {
    fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
        let tried: Vec<_> = self.iter_mut().map(|sink| sink.record(record)).collect();
        tried.into_iter().collect()
    }
}

/// The sinks that a configuration asks for, in a run's folder: `metrics.jsonl`,
/// and event files in `tensorboard`. The run goes on after step `after`, which
/// is 0 for one that begins.
pub fn open(config: &LoggingConfig, folder: &Path, after: u64) -> Result<Vec<Box<dyn Sink>>, MetricsError> {
    let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
    if config.jsonl {
        sinks.push(Box::new(Jsonl::open(&folder.join("metrics.jsonl"), after)?));
    }
    if config.tensorboard {
        sinks.push(Box::new(TensorBoard::open(&folder.join("tensorboard"), after)?));
    }
    Ok(sinks)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_configuration_says_which_files_are_written() {
        for (jsonl, tensorboard) in [(false, false), (true, false), (false, true), (true, true)] {
            let folder = tempfile::tempdir().unwrap();
            let config = LoggingConfig { jsonl, tensorboard, ..LoggingConfig::default() };
            let mut sinks = open(&config, &folder.path().join("run"), 0).unwrap();
            sinks.record(&Record { loss: Some(1.0), ..Record::new(1) }).unwrap();
            assert_eq!(folder.path().join("run/metrics.jsonl").exists(), jsonl);
            assert_eq!(folder.path().join("run/tensorboard").exists(), tensorboard);
        }
    }

    #[test]
    fn every_number_has_a_name() {
        let mut record = Record {
            step: 3,
            epoch: Some(0.5),
            loss: Some(2.0),
            learning_rate: Some(1e-3),
            gradient_norm: Some(4.0),
            tokens: Some(512),
            tokens_per_second: Some(99.0),
            mfu: Some(0.25),
            memory: Some(1 << 30),
            seconds: Some(0.125),
            ..Record::default()
        };
        record.scalars.insert("eval/loss".to_owned(), 2.5);
        let found: Vec<(&str, f64)> = record.numbers().collect();
        assert_eq!(found.len(), 10);
        assert_eq!((found[1], found[9]), (("train/loss", 2.0), ("eval/loss", 2.5)));
        assert_eq!(Record::new(7).numbers().count(), 0);
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut record = Record { loss: Some(0.1 + 0.2), tokens: Some(u64::MAX), ..Record::new(9) };
        record.scalars.insert("eval/loss".to_owned(), 1e-300);
        record.texts.insert("sample/0".to_owned(), "a\nb \u{1f980}".to_owned());
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
        // What is not a number is told as such.
        record.loss = Some(f64::NAN);
        record.scalars.insert("eval/loss".to_owned(), f64::INFINITY);
        let read: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(read.loss, None);
        assert!(read.scalars["eval/loss"].is_nan());
    }

    /// Counts what it is given, and fails.
    struct Failing(Arc<Mutex<usize>>);

    impl Sink for Failing {
        fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
            *self.0.lock().unwrap() += 1;
            Err(MetricsError::NotMetrics { path: "x".into(), line: record.step })
        }
    }

    #[test]
    fn one_sink_that_fails_does_not_keep_others_from_their_work() {
        let count = Arc::new(Mutex::new(0));
        let sink = || Box::new(Failing(Arc::clone(&count))) as Box<dyn Sink>;
        let mut sinks = vec![sink(), sink()];
        let error = sinks.record(&Record::new(4)).unwrap_err();
        assert_eq!(
            (error, *count.lock().unwrap()),
            (MetricsError::NotMetrics { path: "x".into(), line: 4 }, 2)
        );
    }
}
