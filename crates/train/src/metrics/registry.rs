//! The metric sinks that configs may name.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use weightloom_document::schema::Choice;

use super::trackers::{TRACKERS, Tracker};
use super::{Jsonl, MetricsError, Sink, SinkKind, TensorBoard};
use crate::extensions::{NoOptions, RegisterError, Registry, UnknownName, caught, section_of};

/// A kind of metric sink, which opens a [`Sink`] for a run.
///
/// Implement it in your own crate and add it to [`MetricSinks`]; configs can then
/// name it in `train.logging.report_to`. The built-in ones do the same. What it
/// needs to know, such as an address, is part of its value. Only the first rank
/// opens sinks. A sink that fails later is a warning; the run continues.
pub trait SinkFactory: fmt::Debug + Send + Sync + 'static {
    /// The name in the config.
    fn name(&self) -> &'static str;

    /// What it is, in a sentence for the config reference.
    fn summary(&self) -> &'static str;

    /// Fails if the sink can never be opened here, before the run loads anything.
    fn check(&self) -> Result<(), MetricsError> {
        Ok(())
    }

    /// Opens the sink for a run with this output folder that continues after step
    /// `after`; records of later steps are to be discarded.
    fn open(&self, folder: &Path, after: u64) -> Result<Box<dyn Sink>, MetricsError>;

    /// Where to look at the metrics of a run in this folder.
    fn how_to_view(&self, folder: &str) -> String;
}

/// The metric sinks that configs may name, with those of your own crate.
#[derive(Clone, Debug)]
pub struct MetricSinks(Registry<dyn SinkFactory>);

impl Default for MetricSinks {
    fn default() -> Self {
        Self::standard()
    }
}

impl MetricSinks {
    /// The built-in sinks.
    pub fn standard() -> Self {
        const OURS: &str = "the names of built-in sinks differ";
        let sinks = Self(Registry::new("metric sink"));
        sinks.with(JsonlFactory).expect(OURS).with(TensorBoardFactory).expect(OURS)
    }

    /// The same sinks and another one.
    pub fn with(mut self, factory: impl SinkFactory) -> Result<Self, RegisterError> {
        self.register(factory)?;
        Ok(self)
    }

    /// Adds a sink. It may have the name of a tracker, which it then writes to.
    pub fn register(&mut self, factory: impl SinkFactory) -> Result<(), RegisterError> {
        let about = (factory.name(), factory.summary());
        self.0.add(about, section_of::<NoOptions>, Arc::new(factory))
    }

    /// All names, the built-in ones first, and trackers that nobody has registered last.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.names().into_iter().chain(self.unregistered().map(SinkFactory::name)).collect()
    }

    /// Trackers that this program cannot write to.
    fn unregistered(&self) -> impl Iterator<Item = &'static Tracker> {
        TRACKERS.iter().filter(|tracker| self.0.find(tracker.name()).is_err())
    }

    fn find(&self, kind: &SinkKind) -> Result<&dyn SinkFactory, UnknownName> {
        self.0.find(kind.name()).or_else(|unknown| {
            let tracker = TRACKERS.iter().find(|tracker| tracker.name() == kind.name());
            tracker.map(|tracker| tracker as &dyn SinkFactory).ok_or(unknown)
        })
    }

    /// Fails if a sink can never be opened in this program.
    pub fn check(&self, kind: &SinkKind) -> Result<(), MetricsError> {
        let found = self.find(kind)?;
        caught(|| found.check())
            .unwrap_or_else(|panic| Err(MetricsError::failed(kind.name(), panic.to_string())))
    }

    /// Opens a sink for a run that continues after step `after`.
    pub fn open(&self, kind: &SinkKind, folder: &Path, after: u64) -> Result<Box<dyn Sink>, MetricsError> {
        let found = self.find(kind)?;
        caught(|| found.open(folder, after))
            .unwrap_or_else(|panic| Err(MetricsError::failed(kind.name(), panic.to_string())))
    }

    /// Where to look at the metrics that a sink stores.
    pub fn how_to_view(&self, kind: &SinkKind, folder: &str) -> Option<String> {
        let found = self.find(kind).ok()?;
        caught(|| found.how_to_view(folder)).ok()
    }

    pub(crate) fn choices(&self) -> Vec<Choice> {
        let choice = |tracker: &Tracker| Choice {
            name: tracker.name().to_owned(),
            description: tracker.summary().to_owned(),
        };
        self.0.choices().into_iter().chain(self.unregistered().map(choice)).collect()
    }
}

#[derive(Debug)]
struct JsonlFactory;

impl SinkFactory for JsonlFactory {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn summary(&self) -> &'static str {
        "`metrics.jsonl`, one JSON object per record or event."
    }

    fn open(&self, folder: &Path, after: u64) -> Result<Box<dyn Sink>, MetricsError> {
        Ok(Box::new(Jsonl::open(&folder.join("metrics.jsonl"), after)?))
    }

    fn how_to_view(&self, folder: &str) -> String {
        format!("{folder}/metrics.jsonl")
    }
}

#[derive(Debug)]
struct TensorBoardFactory;

impl SinkFactory for TensorBoardFactory {
    fn name(&self) -> &'static str {
        "tensorboard"
    }

    fn summary(&self) -> &'static str {
        "TensorBoard event files in `tensorboard/`."
    }

    fn open(&self, folder: &Path, after: u64) -> Result<Box<dyn Sink>, MetricsError> {
        Ok(Box::new(TensorBoard::open(&folder.join("tensorboard"), after)?))
    }

    fn how_to_view(&self, folder: &str) -> String {
        format!("tensorboard --logdir {folder}/tensorboard")
    }
}
