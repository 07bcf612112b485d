//! `train.eval.sway`: evaluating each checkpoint of a run with a sway suite.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use weightloom::Registry;
use weightloom::sway::suite::{SuiteOverrides, SuiteReader, TunedSide};
use weightloom::sway::{JudgeOptions, PreparedSuite, ProbeVerdict, Report, judge};
use weightloom::train::TrainError;
use weightloom::train::callback::{EvalMetrics, Evaluator, TrainerState};
use weightloom::train::config::Config;

use super::super::failure::Failure;
use super::super::hub::ArgumentError;
use super::super::output::Output;
use super::super::sway::{BackendArgs, build, check_programs, failure, prepare};

/// The name of the suite in messages.
const NAME: &str = "train.eval.sway";

/// Compares checkpoints with the initial weights of the run.
pub(super) struct SwayEvaluator<'a> {
    registry: &'a Registry,
    suite: SuiteSource,
    base: String,
    trained: Trained,
    backend: BackendArgs,
    output: Output,
}

/// Where the suite is.
enum SuiteSource {
    /// In the config, as JSON.
    Inline(String),
    /// In a file, relative to the working folder as the data are.
    File(PathBuf),
}

impl SuiteSource {
    fn of(suite: &Map<String, Value>) -> Result<Self, Failure> {
        if let Some(Value::String(file)) = suite.get("suite") {
            if let Some(key) = suite.keys().find(|key| *key != "suite") {
                let fact = format!("`{NAME}.{key}` has no effect, because `{NAME}.suite` names a file");
                let fix = Some(format!("set `{key}` in `{file}`"));
                return Err(Failure::user(&ArgumentError { fact, fix }));
            }
            return Ok(Self::File(file.into()));
        }
        let mut suite = Value::Object(suite.clone());
        // Placeholders: the overrides of each checkpoint replace both.
        suite["models"] = json!({"base": {"base": "base"}, "ft": {"base": "base", "adapter": "adapter"}});
        Ok(Self::Inline(suite.to_string()))
    }
}

/// What a checkpoint of the run contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trained {
    Adapter,
    Model,
}

impl<'a> SwayEvaluator<'a> {
    /// The evaluator of a run with a suite. Fails on errors in the suite, before
    /// any training.
    pub(super) fn new(
        config: &Config,
        backend: &BackendArgs,
        registry: &'a Registry,
        output: Output,
    ) -> Result<Option<Self>, Failure> {
        let Some(suite) = &config.train.eval.sway else { return Ok(None) };
        let Some(base) = config.model.weights_path.clone() else {
            let fact = format!("`{NAME}` is set, but the run has no initial weights to compare with");
            let fix = Some("set `model.weights_path`, or remove the suite".to_owned());
            return Err(Failure::user(&ArgumentError { fact, fix }));
        };
        let suite = SuiteSource::of(suite)?;
        let trained = if config.model.lora.is_some() { Trained::Adapter } else { Trained::Model };
        let evaluator = Self { registry, suite, base, trained, backend: backend.clone(), output };
        let prepared = evaluator.prepare_suite(Path::new("checkpoint"))?;
        check_programs(&prepared.suite, backend, registry)?;
        Ok(Some(evaluator))
    }

    fn prepare_suite(&self, checkpoint: &Path) -> Result<PreparedSuite, Failure> {
        let path = checkpoint.display().to_string();
        let tuned = match self.trained {
            Trained::Adapter => TunedSide::Adapter(path),
            Trained::Model => TunedSide::Model(path),
        };
        let overrides =
            SuiteOverrides { base: Some(self.base.clone()), tuned: Some(tuned), ..SuiteOverrides::default() };
        let variable = |name: &str| std::env::var(name).ok();
        let reader = SuiteReader { overrides, ..SuiteReader::new(self.registry.judging(), &variable) };
        let suite = match &self.suite {
            SuiteSource::Inline(text) => reader.read(text, Path::new(NAME)),
            SuiteSource::File(file) => reader.read_file(file),
        };
        prepare(suite.map_err(|error| Failure::user(&error))?, None)
    }

    fn report(&self, checkpoint: &Path) -> Result<Report, Failure> {
        let prepared = self.prepare_suite(checkpoint)?;
        let mut backend = build(&prepared.suite, &self.backend, self.registry, self.output.quiet())?;
        judge(&prepared, &mut *backend, &JudgeOptions::default(), &mut ()).map_err(failure)
    }

    fn print(&self, line: &str) {
        self.output.status(line);
    }
}

impl Evaluator for SwayEvaluator<'_> {
    /// Prints the error of a suite that fails, and lets the run continue.
    fn evaluate(
        &mut self,
        state: &TrainerState<'_>,
        checkpoint: &Path,
    ) -> Result<Option<EvalMetrics>, TrainError> {
        let report = match self.report(checkpoint) {
            Ok(report) => report,
            Err(failure) => {
                self.print(&format!("cannot evaluate {}: {failure}", checkpoint.display()));
                return Ok(None);
            }
        };
        let written = write_report(&report, state, checkpoint);
        self.print(&format!("sway {}: {}{written}", checkpoint.display(), report.sentence()));
        Ok(Some(metrics(&report, checkpoint)))
    }
}

/// Writes the report next to the checkpoints, and returns a note about it.
fn write_report(report: &Report, state: &TrainerState<'_>, checkpoint: &Path) -> String {
    let folder = Path::new(&state.config.train.checkpoint.output_dir).join("sway");
    let name = checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (json, html) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.html")));
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&json, report.to_json()))
        .and_then(|()| std::fs::write(&html, report.to_html()));
    match written {
        Ok(()) => format!(" {}", html.display()),
        Err(error) => format!(" cannot write the report: {error}"),
    }
}

fn metrics(report: &Report, checkpoint: &Path) -> EvalMetrics {
    let mut metrics = EvalMetrics::default();
    metrics.scalars.insert("sway/overall".to_owned(), report.score.overall);
    for (category, score) in &report.score.components {
        metrics.scalars.insert(format!("sway/{category}"), *score);
    }
    let number = |verdict: ProbeVerdict| {
        report.probes.iter().filter(|record| record.verdict == verdict).count() as f64
    };
    metrics.scalars.insert("sway/failed".to_owned(), number(ProbeVerdict::Fail));
    metrics.scalars.insert("sway/errors".to_owned(), number(ProbeVerdict::Error));
    for record in &report.probes {
        if let Some(raw) = record.raw {
            metrics.scalars.insert(format!("sway/probe/{}", record.name), raw);
        }
    }
    metrics.texts.insert("sway/verdict".to_owned(), report.verdict.label().to_owned());
    metrics.texts.insert("sway/checkpoint".to_owned(), checkpoint.display().to_string());
    metrics
}
