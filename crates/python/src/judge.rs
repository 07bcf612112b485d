//! Judging models that live in the program.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use serde_json::Value;
use weightloom::Registry;
use weightloom::cli::{CallError, CallErrorKind};
use weightloom::errors::Hint;
use weightloom::sway::autogen::{Provenance, Subject, autogen};
use weightloom::sway::backend::build::embedding_folder;
use weightloom::sway::backend::live::{
    LiveBackend, LiveDescription, LiveModel, LiveOptions, LiveText, LiveTuned,
};
use weightloom::sway::backend::sentence_encoder::WithSentenceEncoder;
use weightloom::sway::runner::{Observer, Phase};
use weightloom::sway::sections::Document;
use weightloom::sway::suite::{SuiteOverrides, SuiteReader};
use weightloom::sway::{
    Backend, Capabilities, JudgeError, JudgeOptions, PreparedSuite, Record, Statistics, Suite, judge,
};

use crate::callbacks::{AfterException, Caller, with_callbacks};
use crate::errors::Raise;
use crate::forked::check_computing;
use crate::live_model::PyLiveModel;
use crate::progress::Progress;

/// What is judged, and by what.
#[derive(FromPyObject)]
pub(crate) struct Judgement {
    base: String,
    tuned: String,
    is_adapter: bool,
    /// Names of the capabilities that make views of an adapter.
    views: Vec<String>,
    layers: Vec<String>,
    vocabulary: usize,
    max_positions: Option<usize>,
    notes: Vec<String>,
    /// A folder with the files of a tokenizer.
    tokenizer: PathBuf,
    /// A suite file, the text of a suite, or a document to generate a suite for.
    suite: Option<PathBuf>,
    suite_text: Option<String>,
    document: Option<PathBuf>,
    only: Vec<String>,
    weights: Option<String>,
    statistics: Option<String>,
    trace: Option<PathBuf>,
}

/// The name of a suite without a file.
const UNNAMED: &str = "suite";

/// Judges a model in memory, and returns the report as JSON. `model` has `forward`,
/// `start_generation` and `continue_generation`.
#[pyfunction]
#[pyo3(signature = (model, judgement, progress=None))]
pub(crate) fn judge_live(
    py: Python<'_>,
    model: Py<PyAny>,
    judgement: Judgement,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    check_computing("judge a model")?;
    let progress = Progress::new(progress);
    let cancel = Arc::clone(&progress.cancel);
    let model = Arc::new(model);
    let judged = with_callbacks(py, &cancel, AfterException::Fail, |caller| {
        judgement.judge(model, caller, &progress)
    })?;
    Ok(judged?)
}

impl Judgement {
    fn judge(self, model: Arc<Py<PyAny>>, caller: Caller, progress: &Progress) -> Result<String, Raise> {
        let prepared = self.prepared()?;
        prepared.check_names(&self.only).map_err(|error| user(&error))?;
        let (options, mut observer) = (
            JudgeOptions {
                only: self.only.clone(),
                trace: self.trace.clone(),
                cancel: Arc::clone(&progress.cancel).into(),
                ..JudgeOptions::default()
            },
            Answers { progress, done: 0 },
        );
        let mut backend = self.backend(PyLiveModel::new(model, caller), &prepared.suite, progress)?;
        let report = judge(&prepared, &mut *backend, &options, &mut observer);
        report.map(|report| report.to_json()).map_err(|error| match &error {
            JudgeError::Backend { .. } | JudgeError::Trace(_) => failed(CallErrorKind::Operational, &error),
            _ => user(&error),
        })
    }

    fn prepared(&self) -> Result<PreparedSuite, Raise> {
        let statistics = self.statistics.as_deref().map(str::parse::<Statistics>).transpose();
        let statistics = statistics.map_err(|error| {
            Raise::from(CallError { kind: CallErrorKind::User, message: error.to_string(), hint: None })
        })?;
        let overrides = SuiteOverrides { statistics, ..SuiteOverrides::default() };
        let registry = Registry::standard();
        let variable = |name: &str| std::env::var(name).ok();
        let reader = SuiteReader { overrides, ..SuiteReader::new(registry.judging(), &variable) };
        let suite = match (&self.suite, &self.document, &self.suite_text) {
            (Some(file), ..) => reader.read_file(file),
            (None, Some(file), _) => {
                let mut suite = reader.read(&self.generated(file)?, Path::new(UNNAMED));
                if let Ok(suite) = &mut suite {
                    suite.file = format!("{}: autogen", file.display());
                }
                suite
            }
            (None, None, text) => reader.read(text.as_deref().unwrap_or_default(), Path::new(UNNAMED)),
        };
        let suite = suite.map_err(|error| user(&error))?;
        PreparedSuite::new(suite, self.weights.as_deref()).map_err(|error| user(&error))
    }

    /// The suite that `weightloom sway autogen` writes for a document.
    fn generated(&self, file: &Path) -> Result<String, Raise> {
        let document = Document::read_file(file).map_err(|error| user(&error))?;
        let subject = Subject {
            base: self.base.clone(),
            adapter: Some(self.tuned.clone()),
            source: file.display().to_string(),
            provenance: Provenance::of(file, None).map_err(|error| user(&error))?,
        };
        autogen(&document, &subject).map_err(|error| user(&error))
    }

    fn backend(
        &self,
        model: impl LiveModel + 'static,
        suite: &Suite,
        progress: &Progress,
    ) -> Result<Box<dyn Backend>, Raise> {
        let encoder = embedding_folder(suite).map_err(|error| user(&error))?;
        let views: Capabilities = self
            .views
            .iter()
            .filter_map(|name| serde_json::from_value(Value::from(name.as_str())).ok())
            .collect();
        let tuned = match self.is_adapter {
            true => LiveTuned::Adapter { views, layers: self.layers.clone() },
            false => LiveTuned::Model,
        };
        let about = LiveDescription {
            base: self.base.clone(),
            tuned_name: self.tuned.clone(),
            tuned,
            vocabulary: self.vocabulary,
            max_positions: self.max_positions,
            training_data: None,
            notes: self.notes.clone(),
        };
        let text = LiveText::from_folder(&self.tokenizer)?;
        let backend = Box::new(LiveBackend::new(model, about, text, LiveOptions::default()));
        match encoder {
            None => Ok(backend),
            Some(folder) => match WithSentenceEncoder::open(backend, &folder, progress) {
                Ok(backend) => Ok(Box::new(backend)),
                Err(error) => Err(user(&error)),
            },
        }
    }
}

/// Passes on how many questions are answered.
struct Answers<'a> {
    progress: &'a Progress,
    done: usize,
}

impl Observer for Answers<'_> {
    fn phase(&mut self, phase: Phase) {
        if let Phase::Asking { round, questions, .. } = phase {
            self.done = 0;
            self.progress.tell("begin", (format!("round {}", round + 1), questions));
        }
    }

    fn answered(&mut self, done: usize, _of: usize) {
        self.progress.tell("advance", (done.saturating_sub(self.done),));
        self.done = done;
    }

    fn judged(&mut self, record: &Record) {
        self.progress.tell("status", (format!("{}: {}", record.name, record.verdict),));
    }
}

/// A mistake of the caller.
pub(crate) fn user<E: std::error::Error + Hint>(error: &E) -> Raise {
    failed(CallErrorKind::User, error)
}

fn failed<E: std::error::Error + Hint>(kind: CallErrorKind, error: &E) -> Raise {
    CallError { kind, message: error.to_string(), hint: error.hint() }.into()
}
