//! A suite with all that it needs, and one run of it.

use std::time::Instant;

use serde_json::{Map, Value, json};
use thiserror::Error;
use weightloom::errors::Hint;
use weightloom::sway::attribution::attribute;
use weightloom::sway::cache::Cache;
use weightloom::sway::packs::Packs;
use weightloom::sway::paired::Paired;
use weightloom::sway::report::Determinism;
use weightloom::sway::runner::{Entry, Job, Judging, Outcome, RunError, check_names, run};
use weightloom::sway::score::Weights;
use weightloom::sway::sections::Document;
use weightloom::sway::{Backend, Record, Report, Score, Statistics, Suite, SwayError, Verdict};

use super::super::failure::Failure;
use super::super::moment::timestamp;
use super::screen::Screen;

/// The most prompts that layers are told apart by.
const ATTRIBUTION_PROMPTS: usize = 16;

/// A suite, checked to its last field, with its texts. No model is loaded.
pub(in crate::cli) struct Session {
    pub(in crate::cli) suite: Suite,
    pub(super) entries: Vec<Entry>,
    pub(super) document: Option<Document>,
    pub(super) packs: Packs,
    pub(super) weights: Weights,
    /// What is odd, but no fault.
    pub(super) warnings: Vec<String>,
}

impl Session {
    /// Checks a suite, and reads what it names. `weights` are those of a
    /// command line.
    pub(in crate::cli) fn new(suite: Suite, weights: Option<&str>) -> Result<Self, Failure> {
        let entries = suite.probes().map_err(|errors| Failure::user(&errors))?;
        let mut warnings: Vec<String> = suite.warnings.iter().map(ToString::to_string).collect();
        let defaults = &suite.defaults;
        let packs = match &defaults.packs {
            None => Packs::own().clone(),
            Some(file) => {
                Packs::read_file(std::path::Path::new(file)).map_err(|error| Failure::user(&error))?
            }
        };
        // A suite without its document still says something.
        let document = suite.source.as_ref().and_then(|file| match Document::read_file(file) {
            Ok(document) => Some(document),
            Err(error) => {
                warnings.push(format!("there are no sections, since the document cannot be used: {error}"));
                None
            }
        });
        if let Some(document) = &document {
            warnings.extend(document.warnings.iter().map(ToString::to_string));
        }
        let mut of_suite = Weights::of_suite(defaults.score_weights.as_ref());
        if let Some(given) = weights {
            of_suite = of_suite.over(given, defaults.statistics).map_err(|error| Failure::user(&error))?;
        }
        Ok(Self { entries, document, packs, weights: of_suite, warnings, suite })
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.suite.defaults.statistics
    }

    /// Whether all of these are entries of the suite.
    pub(super) fn check_names(&self, only: &[String]) -> Result<(), Failure> {
        check_names(&self.entries, only).map_err(|error| Failure::user(&error))
    }

    /// Asks, judges, and tells.
    pub(in crate::cli) fn run(
        &self,
        only: &[String],
        backend: &mut dyn Backend,
        mut cache: Option<&mut Cache>,
        screen: &mut Screen,
    ) -> Result<Report, Failure> {
        let (started_at, begun) = (timestamp(), Instant::now());
        let text = self.document.as_ref().map(Document::text);
        let defaults = &self.suite.defaults;
        let job = Job {
            entries: &self.entries,
            seed: defaults.seed as u64,
            top_k: usize::try_from(defaults.top_k).unwrap_or(usize::MAX),
            sections: self.document.as_ref().map_or(&[], |document| &document.sections),
            document: text.as_deref(),
            packs: &self.packs,
            only,
            judging: match self.statistics() {
                Statistics::Reference => Judging::Reference,
                Statistics::Paired => Judging::Paired(Paired::default()),
            },
        };
        let kept_before = cache.as_deref().map_or(0, Cache::len);
        let outcome = run(&job, backend, cache.as_deref_mut(), screen);
        let mut outcome = outcome.map_err(|error| {
            let kept = cache.as_deref().filter(|cache| cache.writes()).map(Cache::len);
            failed(error, kept.map(|kept| kept - kept_before))
        })?;
        if self.statistics() == Statistics::Paired {
            self.add_layers(&mut outcome, backend, cache, screen);
        }
        let score = Score::of(&outcome.records, &self.weights, self.statistics());
        let description = backend.description().clone();
        let object = |value: Value| match value {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        let mut warnings = self.warnings.clone();
        warnings.append(&mut screen.notes);
        Ok(Report {
            spec_path: self.suite.file.clone(),
            base_model_id: description.base.clone(),
            adapter_id: description.adapter.clone().unwrap_or_default(),
            started_at,
            finished_at: timestamp(),
            wall_seconds: begun.elapsed().as_secs_f64(),
            determinism: Some(determinism(&description.kind, defaults.seed)),
            backend_stats: object(json!(outcome.counters)),
            score,
            null_stats: object(json!(outcome.nulls.map(|nulls| nulls.by_kind))),
            probes: outcome.records,
            statistics: self.statistics(),
            backend: Some(description),
            packs: Some(self.packs.version()),
            warnings,
            ..Report::default()
        })
    }

    /// Puts what layers carry beside the first measure of the change. A backend
    /// that fails here takes nothing away from what was judged.
    fn add_layers(
        &self,
        outcome: &mut Outcome,
        backend: &mut dyn Backend,
        cache: Option<&mut Cache>,
        screen: &mut Screen,
    ) {
        let judged = |record: &&mut Record| {
            record.kind == "delta_kl" && !matches!(record.verdict, Verdict::Error | Verdict::Skip)
        };
        let Some(record) = outcome.records.iter_mut().find(judged) else { return };
        let Some(entry) = self.suite.entries().iter().find(|entry| entry.name == record.name) else {
            return;
        };
        let prompts: Vec<String> =
            entry.fields.get("prompts").and_then(Value::as_array).map_or_else(Vec::new, |prompts| {
                prompts.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            });
        let prompts = &prompts[..prompts.len().min(ATTRIBUTION_PROMPTS)];
        let seed = self.suite.defaults.seed as u64;
        match attribute(prompts, seed, backend, cache, screen) {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(found))) => {
                record.evidence.insert("layers".to_owned(), json!(found.layers));
                record.evidence.insert("parts".to_owned(), json!(found.parts));
            }
            Ok(Err(error)) => screen.notes.push(format!("layers could not be told apart: {error}")),
            Err(error) => screen.notes.push(format!("layers could not be told apart: {error}")),
        }
    }
}

fn determinism(kind: &str, seed: i64) -> Determinism {
    let ours = matches!(kind, "hf" | "mlx");
    let (class, note) = match ours {
        true => ("strict", "the same files give the same numbers, in whatever company they are asked"),
        false => ("best_effort", "what answers is not ours, so its numbers may vary"),
    };
    Determinism { class: class.to_owned(), seed, notes: vec![note.to_owned()] }
}

/// A run that could not go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{error}")]
struct Interrupted {
    error: SwayError,
    /// How many answers are there for the next time.
    kept: usize,
}

impl Hint for Interrupted {
    fn hint(&self) -> Option<String> {
        let kept = format!("{} new answers are kept: run it again to go on", self.kept);
        Some(match self.error.hint() {
            Some(hint) => format!("{hint}; {kept}"),
            None => kept,
        })
    }
}

fn failed(error: RunError, kept: Option<usize>) -> Failure {
    match (error, kept) {
        (RunError::Backend(error), Some(kept)) if kept > 0 => {
            Failure::operational_with_hint(&Interrupted { error, kept })
        }
        (RunError::Backend(error), _) => Failure::operational_with_hint(&error),
        (error, _) => Failure::user(&error),
    }
}
