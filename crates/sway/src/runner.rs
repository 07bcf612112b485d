//! Running a suite, with the questions of all probes batched.
//!
//! Every probe runs until it needs a missing answer. The backend then answers
//! all missing questions at once, and the unfinished probes run again. A suite
//! takes as many rounds as its longest chain of dependent questions, usually
//! two.

mod cancel;
mod counters;
mod entry;
mod observer;
mod round;

#[cfg(test)]
mod tests;

pub use cancel::CancelFlag;
pub use counters::Counters;
pub use entry::{Entry, EntryError};
pub use observer::{Observer, Phase, TraceEvent, prompt_hash};

use std::time::Instant;

use thiserror::Error;
use weightloom_errors::{Hint, did_you_mean, name_list, nearest};

use crate::answer_store::AnswerStore;
use crate::backend::Backend;
use crate::cache::Cache;
use crate::chat::{ChatSettings, ChatSupport, Rendering};
use crate::error::BackendError;
use crate::packs::Packs;
use crate::paired::{self, Draft, PairedSettings};
use crate::probe::{EntryWeight, Finding, NullStatistics, PREFLIGHT, ProbeContext, Probes, Stop};
use crate::record::Record;
use crate::sections::Section;
use crate::statistics::Statistics;
use crate::view::View;
pub use round::answer_all;
use round::{PendingQuestions, Rounds};

/// A suite and how to run it.
#[derive(Debug)]
pub struct SuiteRun<'a> {
    /// The probes, in file order.
    pub entries: &'a [Entry],
    /// Seed of random draws.
    pub seed: u64,
    /// Number of most likely tokens compared.
    pub top_k: usize,
    /// Sections of the document.
    pub sections: &'a [Section],
    /// Text of the document.
    pub document: Option<&'a str>,
    /// Built-in texts of probes.
    pub packs: &'a Packs,
    /// The kinds of probes that the suite may name.
    pub probes: &'a Probes,
    /// Names of the entries to run, together with the null distributions they
    /// need; all entries if empty.
    pub only: &'a [String],
    /// The kind of statistics.
    pub statistics: Statistics,
    /// Settings of the paired tests; unused with [`Statistics::Reference`].
    pub paired: PairedSettings,
    /// When prompts are rendered with the model's chat template.
    pub chat: ChatSettings,
    /// Stops the run between questions once it is set.
    pub cancel: Option<&'a CancelFlag>,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    /// One record per entry, in file order.
    pub records: Vec<Record>,
    /// The null distributions, if they were measured.
    pub nulls: Option<NullStatistics>,
    /// Statistics of the questions.
    pub counters: Counters,
}

/// Why a run has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RunError {
    #[error("unknown entry `{name}`")]
    UnknownEntry { name: String, near: Option<String>, known: Vec<String> },
    /// Answers received before the failure are cached.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The caller set the [`CancelFlag`]. Answers received so far are cached.
    #[error("the run was cancelled")]
    Cancelled,
}

impl Hint for RunError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownEntry { near: Some(near), .. } => did_you_mean(Some(near)),
            Self::UnknownEntry { known, .. } if known.is_empty() => Some("the suite is empty".to_owned()),
            Self::UnknownEntry { known, .. } => Some(format!("the suite has {}", name_list(known, 20))),
            Self::Backend(error) => error.hint(),
            Self::Cancelled => None,
        }
    }
}

/// The state of an entry during a run.
struct EntryProgress<'a> {
    entry: &'a Entry,
    /// How its prompts are rendered.
    rendering: Rendering,
    /// Kinds of the later entries.
    downstream: Vec<String>,
    result: Option<ProbeResult>,
    /// The record of a final finding, once it was reported.
    recorded: Option<Record>,
    /// Has all its answers, and waits for the null distribution.
    awaits_null: bool,
    seconds: f64,
}

/// The result of a probe.
enum ProbeResult {
    /// A final finding.
    Judged(Finding),
    /// A claim to be judged together with all others.
    Drafted(Draft),
}

/// Runs a suite.
pub fn run(
    suite: &SuiteRun<'_>,
    backend: &mut dyn Backend,
    cache: Option<&mut Cache>,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, RunError> {
    let mut progress = plan(suite, &backend.chat_support())?;
    let capabilities = backend.description().capabilities.clone();
    let mut answers = AnswerStore::new();
    let mut rounds = Rounds::new(backend, cache, suite.cancel);
    let nulls = loop {
        observer.phase(Phase::Probing);
        let context = ProbeContext {
            answers: &answers,
            base: View::Base,
            tuned: View::Tuned,
            seed: suite.seed,
            top_k: suite.top_k,
            sections: suite.sections,
            document: suite.document,
            packs: suite.packs,
            probes: suite.probes,
            capabilities: &capabilities,
            nulls: None,
            statistics: suite.statistics,
            rendering: &Rendering::PlainText,
            downstream: &[],
        };
        let (nulls, wanted) = run_probes(&mut progress, &context, &suite.paired, observer);
        answers.take_missing();
        if wanted.is_empty() {
            break nulls;
        }
        if rounds.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let names: Vec<&str> = progress.iter().map(|one| one.entry.name.as_str()).collect();
        let answered = rounds.ask(&wanted, &names, &mut answers, observer)?;
        if rounds.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let seconds = match answered {
            Ok(seconds) => seconds,
            Err(error) => {
                let record = preflight_record(&error);
                observer.judged(&record);
                return Ok(RunOutcome { records: vec![record], nulls: None, counters: rounds.counters });
            }
        };
        for (one, seconds) in progress.iter_mut().zip(seconds) {
            one.seconds += seconds;
        }
    };
    let records = match suite.statistics {
        Statistics::Reference => {
            let record = |mut one: EntryProgress<'_>| match one.recorded.take() {
                Some(record) => record,
                None => one.record(suite.statistics, observer),
            };
            progress.into_iter().map(record).collect()
        }
        Statistics::Paired => conclude(progress, &suite.paired, observer),
    };
    Ok(RunOutcome { records, nulls, counters: rounds.counters })
}

/// Checks that every name in `only` is an entry. [`run`] checks too; this
/// function needs no backend.
pub fn check_names(entries: &[Entry], only: &[String]) -> Result<(), RunError> {
    let Some(name) = only.iter().find(|name| !entries.iter().any(|entry| entry.name == **name)) else {
        return Ok(());
    };
    let near = nearest(name, entries.iter().map(|entry| entry.name.as_str())).map(str::to_owned);
    let known = entries.iter().map(|entry| entry.name.clone()).collect();
    Err(RunError::UnknownEntry { name: name.clone(), near, known })
}

/// Selects the entries to run.
fn plan<'a>(suite: &SuiteRun<'a>, support: &ChatSupport) -> Result<Vec<EntryProgress<'a>>, RunError> {
    check_names(suite.entries, suite.only)?;
    let is_named = |entry: &Entry| suite.only.is_empty() || suite.only.contains(&entry.name);
    // A null before the last named entry may calibrate that entry.
    let last = suite.entries.iter().rposition(is_named);
    let selected: Vec<&Entry> = suite
        .entries
        .iter()
        .enumerate()
        .filter(|(index, entry)| {
            is_named(entry) || (entry.is_null() && last.is_some_and(|last| *index < last))
        })
        .map(|(_, entry)| entry)
        .collect();
    let disabled = || ProbeResult::Judged(Finding::skip("the entry is disabled"));
    let progress = selected.iter().enumerate().map(|(index, entry)| EntryProgress {
        entry,
        rendering: suite.chat.rendering(entry.chat, support, suite.statistics),
        downstream: selected[index + 1..].iter().map(|later| later.kind.clone()).collect(),
        result: (!entry.enabled).then(disabled),
        recorded: None,
        awaits_null: false,
        seconds: 0.0,
    });
    Ok(progress.collect())
}

/// Runs every unfinished probe, in file order. Returns the null distributions
/// in force at the end, and the missing questions.
fn run_probes(
    progress: &mut [EntryProgress<'_>],
    context: &ProbeContext<'_>,
    paired: &PairedSettings,
    observer: &mut dyn Observer,
) -> (Option<NullStatistics>, PendingQuestions) {
    let mut wanted = PendingQuestions::default();
    let mut nulls: Option<NullStatistics> = None;
    // Entries after an unfinished null are not judged yet.
    let mut null_pending = false;
    for (index, one) in progress.iter_mut().enumerate() {
        if one.result.is_none() && !(null_pending && one.awaits_null) {
            let started = Instant::now();
            let context = ProbeContext {
                nulls: nulls.as_ref(),
                rendering: &one.rendering,
                downstream: &one.downstream,
                ..context.clone()
            };
            let result = one.entry.run(&context, paired);
            one.seconds += started.elapsed().as_secs_f64();
            match result {
                Ok(result) if !null_pending => one.result = Some(result),
                Ok(_) => one.awaits_null = true,
                Err(Stop::Failed(error)) => {
                    // Nobody waits for what it had asked.
                    context.answers.take_missing();
                    one.result = Some(ProbeResult::Judged(Finding::error(error.to_string())));
                }
                Err(Stop::Pending) => {
                    let missing = context.answers.take_missing();
                    if missing.is_empty() {
                        let message = "the probe waits for answers without asking questions";
                        one.result = Some(ProbeResult::Judged(Finding::error(message)));
                    }
                    wanted.add(index, missing);
                }
            }
            if let Some(ProbeResult::Judged(found)) = &mut one.result {
                found.evidence.add(&EntryWeight { weight: one.entry.weight });
                let record = one.record(context.statistics, observer);
                observer.judged(&record);
                one.recorded = Some(record);
            }
        }
        match &one.result {
            Some(ProbeResult::Judged(Finding { nulls: Some(found), .. })) => nulls = Some(found.clone()),
            None if one.entry.is_null() => null_pending = true,
            _ => {}
        }
    }
    (nulls, wanted)
}

/// Judges all claims together; final findings are not claims.
fn conclude(
    progress: Vec<EntryProgress<'_>>,
    paired: &PairedSettings,
    observer: &mut dyn Observer,
) -> Vec<Record> {
    let mut entries = Vec::new();
    let mut drafts = Vec::new();
    for one in progress {
        entries.push((one.entry, one.seconds, matches!(one.result, Some(ProbeResult::Judged(_)))));
        drafts.push(match one.result {
            Some(ProbeResult::Drafted(draft)) => draft,
            Some(ProbeResult::Judged(finding)) => Draft::settled(finding),
            None => Draft::settled(Finding::error("the entry was not judged")),
        });
    }
    let judged = paired::conclude(drafts, paired);
    entries
        .into_iter()
        .zip(judged)
        .map(|((entry, seconds, is_reported), judged)| {
            let mut finding = judged.finding.without_non_finite();
            finding.evidence.add(&EntryWeight { weight: entry.weight });
            let mut record = entry.record(finding, seconds, Statistics::Paired, observer);
            (record.p_value, record.p_adjusted) = (judged.p_value, judged.p_adjusted);
            if !is_reported {
                observer.judged(&record);
            }
            record
        })
        .collect()
}

impl EntryProgress<'_> {
    /// The record of an entry with a final finding.
    fn record(&self, statistics: Statistics, observer: &mut dyn Observer) -> Record {
        let found = match &self.result {
            Some(ProbeResult::Judged(finding)) => finding.clone(),
            _ => Finding::error("the entry was not judged"),
        };
        self.entry.record(found, self.seconds, statistics, observer)
    }
}

fn preflight_record(error: &BackendError) -> Record {
    let message = match error.hint() {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    };
    Finding::error(message).into_record("__preflight__", PREFLIGHT.kind, 0.0)
}
