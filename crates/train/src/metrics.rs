//! Metrics of a run: records, and the sinks that store them.
//!
//! A [`Record`] holds the metrics of one step. A [`Sink`] stores records: as
//! JSON lines ([`Jsonl`]) or as TensorBoard event files ([`TensorBoard`]). To
//! add a sink here, write its file and add it to [`SinkKind`] and
//! [`MetricSinks::standard`]; in your own crate, implement [`SinkFactory`] and add
//! it to [`MetricSinks`].
//! A [`Meter`] computes throughput from the tokens and seconds it is given.
//!
//! A run that resumes from step `n` repeats the steps after it. Sinks are opened
//! with that `n` and discard later records, so no step appears twice.

mod error;
mod event;
mod jsonl;
mod memory;
mod meter;
mod registry;
mod sinks;
mod tensorboard;
mod trackers;

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

pub use error::MetricsError;
pub use jsonl::Jsonl;
pub use memory::{Memory, peak_memory};
pub use meter::{Meter, Reading};
pub use registry::{MetricSinks, SinkFactory};
pub use sinks::Sinks;
pub use tensorboard::TensorBoard;

pub use crate::callback::{RunSummary, TimeEstimate};
use crate::config::{BadStepAction, LoggingConfig};
use crate::data::{BatchDocuments, DocumentsRead};

/// A metric sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = crate::extensions::one_of)]
pub enum SinkKind {
    /// `metrics.jsonl`, one JSON object per record or event.
    Jsonl,
    /// TensorBoard event files in `tensorboard/`.
    Tensorboard,
    /// Weights & Biases, through the Python module and the package `wandb`.
    Wandb,
    /// MLflow, through the Python module and the package `mlflow`.
    Mlflow,
    /// Trackio, through the Python module and the package `trackio`.
    Trackio,
    /// One that the program has registered with [`MetricSinks`].
    #[serde(untagged)]
    #[schemars(skip)]
    Registered(String),
}

impl SinkKind {
    /// The name in the config.
    pub fn name(&self) -> &str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Tensorboard => "tensorboard",
            Self::Wandb => "wandb",
            Self::Mlflow => "mlflow",
            Self::Trackio => "trackio",
            Self::Registered(name) => name,
        }
    }

    /// The file, or the command that shows the metrics of a run in this folder;
    /// the name of a sink that is not built in.
    pub fn how_to_view(&self, folder: &str) -> String {
        MetricSinks::standard().how_to_view(self, folder).unwrap_or_else(|| self.name().to_owned())
    }
}

/// The metrics of one step. Unmeasured values are omitted.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Step number, starting at 1.
    pub step: u64,
    /// Epochs completed, including the fraction of the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Mean loss over the step's target tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Norm of all gradients before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Tokens since the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Throughput over the most recent steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Model flops utilization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Peak memory in bytes: of this process, or of tensors on its GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Duration of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Other scalars by name, such as `eval/loss`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "numbers")]
    pub scalars: BTreeMap<String, f64>,
    /// Texts by name, such as `sample/0`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<String, String>,
}

impl Record {
    /// An empty record of a step.
    pub fn new(step: u64) -> Self {
        Self { step, ..Self::default() }
    }

    /// All scalars by name; those of the training step start with `train/`.
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

/// JSON cannot express NaN, which is stored as `null`.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let read = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(read.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}

/// Stores records. A record is on disk, or at least with the operating system,
/// when `record` returns, because a run may be killed at any time.
pub trait Sink: Send {
    /// Stores a record.
    fn record(&mut self, record: &Record) -> Result<(), MetricsError>;

    /// Stores an event, if the sink can. It does nothing by default.
    fn event(&mut self, event: &Event) -> Result<(), MetricsError> {
        let _ = event;
        Ok(())
    }
}

/// Something that happened in a run, other than the metrics of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Event {
    /// Steps done before it.
    pub step: u64,
    #[serde(flatten)]
    pub what: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A process starts or resumes the run.
    Start(Box<RunSummary>),
    /// The remaining time is known.
    Estimate(TimeEstimate),
    /// The process ends: the documents that the run has read.
    End {
        /// The documents of the training data; `None` for dummy data.
        data: Option<DocumentsRead>,
        /// Whether the run is complete before its last step
        /// (`train.eval.early_stopping`).
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        early: bool,
    },
    /// A step whose update was not made.
    BadStep(BadStep),
    /// Something that the run survived.
    Warning {
        /// What happened.
        message: String,
    },
}

/// A step whose update was not made.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct BadStep {
    /// The number of the step.
    pub bad_step: u64,
    pub action: BadStepAction,
    pub reason: String,
    pub documents: BatchDocuments,
    /// The step that the run returned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_to: Option<u64>,
}

/// Opens the sinks of `report_to` in the run's folder. The run continues after
/// step `after`, which is 0 for a new run.
pub fn open(
    config: &LoggingConfig,
    sinks: &MetricSinks,
    folder: &Path,
    after: u64,
) -> Result<Sinks, MetricsError> {
    let open = |kind: &SinkKind| Ok((kind.name().to_owned(), sinks.open(kind, folder, after)?));
    let opened: Result<Vec<_>, MetricsError> = config.report_to.iter().map(open).collect();
    Ok(Sinks::named(opened?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn report_to_selects_the_files() {
        use SinkKind::{Jsonl, Tensorboard};
        for report_to in [vec![], vec![Jsonl], vec![Tensorboard], vec![Jsonl, Tensorboard]] {
            let (jsonl, tensorboard) = (report_to.contains(&Jsonl), report_to.contains(&Tensorboard));
            let folder = tempfile::tempdir().unwrap();
            let config = LoggingConfig { report_to, ..LoggingConfig::default() };
            let mut sinks = open(&config, &MetricSinks::standard(), &folder.path().join("run"), 0).unwrap();
            assert_eq!(sinks.record(&Record { loss: Some(1.0), ..Record::new(1) }), []);
            assert_eq!(folder.path().join("run/metrics.jsonl").exists(), jsonl);
            assert_eq!(folder.path().join("run/tensorboard").exists(), tensorboard);
        }
    }

    #[test]
    fn every_scalar_has_a_name() {
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
    fn records_round_trip_through_json() {
        let mut record = Record { loss: Some(0.1 + 0.2), tokens: Some(u64::MAX), ..Record::new(9) };
        record.scalars.insert("eval/loss".to_owned(), 1e-300);
        record.texts.insert("sample/0".to_owned(), "a\nb \u{1f980}".to_owned());
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
        record.loss = Some(f64::NAN);
        record.scalars.insert("eval/loss".to_owned(), f64::INFINITY);
        let read: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(read.loss, None);
        assert!(read.scalars["eval/loss"].is_nan());
    }
}
