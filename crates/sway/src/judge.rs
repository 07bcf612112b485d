//! Judging a fine-tuned model: from a suite and a backend to a report.

mod trace;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Map, Value, json};
use thiserror::Error;
use weightloom_errors::{FileError, Hint};

use self::trace::Recorder;
use crate::attribution::attribute;
use crate::backend::Backend;
use crate::cache::{Cache, CacheAccess};
use crate::chat::{ChatSettings, ChatSupport};
use crate::error::BackendError;
use crate::packs::{PackError, Packs};
use crate::paired::PairedSettings;
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::report::{Determinism, Report};
use crate::runner::{self, CancelFlag, Entry, Observer, RunError, RunOutcome, SuiteRun, check_names};
use crate::score::{Score, WeightError, Weights};
use crate::sections::Document;
use crate::statistics::Statistics;
use crate::suite::{Suite, SuiteErrors};
use crate::training_health;
use crate::verdict::Verdict;

/// The most prompts over which the change is attributed to layers.
const ATTRIBUTION_PROMPTS: usize = 16;

/// A suite with its probes built and its texts and document read. No model is
/// loaded.
#[derive(Debug)]
pub struct PreparedSuite {
    /// The suite as read from its file.
    pub suite: Suite,
    /// The probes, in the order of the file.
    pub entries: Vec<Entry>,
    /// The document that the model was fine-tuned on.
    pub document: Option<Document>,
    /// Prompts, facts and the corpus that probes use.
    pub packs: Packs,
    /// The weight of each category.
    pub weights: Weights,
    /// What is unusual about the suite but does not stop it.
    pub warnings: Vec<String>,
}

/// Why a suite cannot be prepared.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// Entries are wrong.
    #[error(transparent)]
    Suite(#[from] SuiteErrors),
    /// The file named by `defaults.packs` is wrong.
    #[error(transparent)]
    Packs(#[from] PackError),
    /// The weights given over those of the suite are wrong.
    #[error(transparent)]
    Weights(#[from] WeightError),
}

impl Hint for PrepareError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Suite(error) => error.hint(),
            Self::Packs(error) => error.hint(),
            Self::Weights(error) => error.hint(),
        }
    }
}

impl PreparedSuite {
    /// Builds the probes of a suite and reads the files it names. `weights`, as
    /// in `adherence=0.5,ablation=0`, override those of the suite.
    pub fn new(suite: Suite, weights: Option<&str>) -> Result<Self, PrepareError> {
        let entries = suite.probes()?;
        let mut warnings: Vec<String> = suite.warnings.iter().map(ToString::to_string).collect();
        let packs = match &suite.defaults.packs {
            None => Packs::builtin().clone(),
            Some(file) => Packs::read_file(Path::new(file))?,
        };
        // A suite without its document still has probes that need none.
        let document = suite.source.as_ref().and_then(|file| match Document::read_file(file) {
            Ok(document) => Some(document),
            Err(error) => {
                warnings.push(format!("no sections: {error}"));
                None
            }
        });
        if let Some(document) = &document {
            warnings.extend(document.warnings.iter().map(ToString::to_string));
        }
        let mut combined = Weights::of_suite(suite.defaults.score_weights.as_ref());
        if let Some(given) = weights {
            combined = combined.over(given, suite.defaults.statistics)?;
        }
        Ok(Self { entries, document, packs, weights: combined, warnings, suite })
    }

    /// Checks that every name in `only` is an entry of the suite. [`judge`]
    /// checks this too; calling it first fails before a model is loaded.
    pub fn check_names(&self, only: &[String]) -> Result<(), RunError> {
        check_names(&self.entries, only)
    }
}

/// Options of [`judge`].
#[derive(Clone, Debug, Default)]
pub struct JudgeOptions {
    /// Names of the entries to run, together with the noise they are compared
    /// with; all entries if empty.
    pub only: Vec<String>,
    /// The folder in which answers are cached; none disables the cache. A run
    /// that was interrupted resumes from it.
    pub cache: Option<PathBuf>,
    /// A file to which every question is appended as a line of JSON.
    pub trace: Option<PathBuf>,
    /// Settings of the paired tests.
    pub paired: PairedSettings,
    /// Stops the run from another thread.
    pub cancel: CancelFlag,
}

/// Why a suite gave no report.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// An entry does not exist, or the run was cancelled.
    #[error(transparent)]
    Run(RunError),
    /// The backend failed.
    #[error("{error}")]
    #[allow(missing_docs)]
    Backend {
        error: BackendError,
        /// New answers in the cache, from which the next run resumes.
        cached: usize,
    },
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] FileError),
}

impl Hint for JudgeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Run(error) => error.hint(),
            Self::Backend { error, cached: 0 } => error.hint(),
            Self::Backend { error, cached } => {
                let resume = format!("{cached} new answers are cached: run the suite again to resume");
                Some(error.hint().map_or(resume.clone(), |hint| format!("{hint}; {resume}")))
            }
            Self::Trace(error) => error.hint(),
        }
    }
}

/// Judges a fine-tuned model against its base.
///
/// Asks the backend what the probes of the suite need, judges the answers, and
/// returns the report. Progress goes to `observer`; nothing is printed.
///
/// ```
/// use std::path::Path;
/// use weightloom_sway::backend::dummy::Dummy;
/// use weightloom_sway::{JudgeOptions, PreparedSuite, Suite, judge};
///
/// let text = r#"
/// models:
///   base: {base: tiny}
///   ft: {base: tiny, adapter: out}
/// suite:
///   - {name: change, kind: delta_kl, prompts: [Once upon a time, The sky is]}
/// "#;
/// let suite = Suite::read(text, Path::new("sway.yaml"), &|_| None)?;
/// let prepared = PreparedSuite::new(suite, None)?;
/// // A backend with canned answers; `backend::build` makes real ones.
/// let mut backend = Dummy::default();
/// let report = judge(&prepared, &mut backend, &JudgeOptions::default(), &mut ())?;
/// assert_eq!(report.probes[0].name, "change");
/// assert!(report.probes[0].raw > Some(0.4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn judge(
    prepared: &PreparedSuite,
    backend: &mut dyn Backend,
    options: &JudgeOptions,
    observer: &mut dyn Observer,
) -> Result<Report, JudgeError> {
    let (started_at, started) = (timestamp(), Instant::now());
    let (mut cache, mut warnings) = match &options.cache {
        Some(folder) => open_cache(backend, folder),
        None => (None, Vec::new()),
    };
    if cache.as_ref().is_some_and(Cache::is_writable) {
        observer.caching();
    }
    let mut recorder = Recorder::new(observer, options.trace.as_deref())?;
    let text = prepared.document.as_ref().map(Document::text);
    let defaults = &prepared.suite.defaults;
    let statistics = defaults.statistics;
    let job = SuiteRun {
        entries: &prepared.entries,
        seed: defaults.seed as u64,
        top_k: usize::try_from(defaults.top_k).unwrap_or(usize::MAX),
        sections: prepared.document.as_ref().map_or(&[], |document| &document.sections),
        document: text.as_deref(),
        packs: &prepared.packs,
        probes: prepared.suite.kinds(),
        only: &options.only,
        statistics,
        paired: options.paired,
        chat: ChatSettings { mode: defaults.chat, system: defaults.system.clone() },
        cancel: Some(&options.cancel),
    };
    let cached_before = cache.as_ref().map_or(0, Cache::len);
    let outcome = runner::run(&job, backend, cache.as_mut(), &mut recorder);
    let mut outcome = outcome.map_err(|error| match error {
        RunError::Backend(error) => {
            let writing = cache.as_ref().filter(|cache| cache.is_writable());
            let cached = writing.map_or(0, |cache| cache.len() - cached_before);
            JudgeError::Backend { error, cached }
        }
        other => JudgeError::Run(other),
    })?;
    if statistics == Statistics::Paired {
        add_layers(&mut outcome, &job, backend, cache.as_mut(), &mut recorder);
    }
    let score = Score::of(&outcome.records, &prepared.weights, statistics);
    let mut description = backend.description().clone();
    description.notes.extend(chat_notes(&job, &backend.chat_support()));
    warnings.splice(0..0, prepared.warnings.iter().cloned());
    warnings.append(&mut recorder.notes);
    Ok(Report {
        spec_path: prepared.suite.file.clone(),
        base_model_id: description.base.clone(),
        adapter_id: description.adapter.clone().unwrap_or_default(),
        started_at,
        finished_at: timestamp(),
        wall_seconds: started.elapsed().as_secs_f64(),
        determinism: Some(determinism(&description.kind, defaults.seed)),
        backend_stats: object(json!(outcome.counters)),
        verdict: Verdict::of(&outcome.records),
        score,
        null_stats: object(json!(outcome.nulls.map(|nulls| nulls.by_kind))),
        probes: outcome.records,
        statistics,
        backend: Some(description),
        packs: Some(prepared.packs.version()),
        notes: training_health::notes_of_suite(&prepared.suite),
        warnings,
        ..Report::default()
    })
}

/// The cached answers of a backend, and why new ones are not cached.
fn open_cache(backend: &dyn Backend, folder: &Path) -> (Option<Cache>, Vec<String>) {
    let Some(identity) = &backend.description().identity else { return (None, Vec::new()) };
    let mut cache = match Cache::open(folder, identity) {
        Ok(cache) => cache,
        Err(error) => return (None, vec![error.to_string()]),
    };
    // Without a cache of its own, the base's answers are cached with the rest.
    if let Some(Ok(base)) = backend.base_identity().map(|identity| Cache::open(folder, &identity)) {
        cache = cache.with_base(base);
    }
    let warning = match cache.access() {
        CacheAccess::Writable => return (Some(cache), Vec::new()),
        CacheAccess::Locked => {
            "new answers are not cached: another run of the same models is writing to the cache".to_owned()
        }
        CacheAccess::ReadOnly => {
            format!("new answers are not cached: {} is read-only", cache.path().display())
        }
    };
    (Some(cache), vec![warning])
}

/// Adds each layer's share of the change to the first record that measures it.
/// A backend that fails here loses nothing of what was judged.
fn add_layers(
    outcome: &mut RunOutcome,
    job: &SuiteRun<'_>,
    backend: &mut dyn Backend,
    cache: Option<&mut Cache>,
    recorder: &mut Recorder<'_>,
) {
    let found = outcome
        .records
        .iter_mut()
        .filter(|record| !matches!(record.verdict, ProbeVerdict::Error | ProbeVerdict::Skip))
        .find_map(|record| {
            let entry = job.entries.iter().find(|entry| entry.name == record.name)?;
            let prompts = entry.attribution_prompts();
            (!prompts.is_empty()).then_some((record, entry, prompts))
        });
    let Some((record, entry, prompts)) = found else { return };
    let rendering = job.chat.rendering(entry.chat, &backend.chat_support(), job.statistics);
    let prompts: Vec<Prompt> =
        prompts.iter().take(ATTRIBUTION_PROMPTS).map(|prompt| rendering.apply(prompt)).collect();
    let failure = match attribute(&prompts, job.seed, backend, cache, recorder) {
        Ok(Ok(None)) => return,
        Ok(Ok(Some(found))) => {
            record.evidence.add(&found.shares);
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    recorder.notes.push(format!("cannot attribute the change to layers: {failure}"));
}

/// How prompts are rendered, and which entries differ.
fn chat_notes(job: &SuiteRun<'_>, support: &ChatSupport) -> Vec<String> {
    let own = |entry: &Entry| {
        let mode = entry.chat.filter(|mode| *mode != job.chat.mode)?;
        let settings = ChatSettings { mode, ..job.chat.clone() };
        let note = settings.note(support, job.statistics)?.replace("the suite says", "the entry says");
        Some(format!("`{}`: {note}", entry.name))
    };
    let whole = job.chat.note(support, job.statistics);
    whole.into_iter().chain(job.entries.iter().filter_map(own)).collect()
}

fn determinism(kind: &str, seed: i64) -> Determinism {
    let (class, note) = match kind {
        "hf" | "mlx" => ("strict", "the same files give the same numbers, however questions are batched"),
        _ => ("best_effort", "the backend is not part of this program, so its numbers may vary"),
    };
    Determinism { class: class.to_owned(), seed, notes: vec![note.to_owned()] }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The time in UTC, as ISO 8601 with microseconds.
fn timestamp() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

#[cfg(test)]
mod tests;
