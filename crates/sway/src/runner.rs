//! Running a suite: what its probes want to know is asked together.
//!
//! Every probe is tried; what it looks for in vain is noted. The backend is
//! asked once for all that was noted, and the probes are tried again, until
//! none wants more. A suite so needs as many rounds as its longest chain of
//! questions that depend on answers, mostly two.

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
pub use observer::{Observer, Phase, Silent, TraceEvent, prompt_hash};

use std::time::Instant;

use serde_json::Value;
use thiserror::Error;
use weightloom_errors::{Hint, nearest};

use crate::answer_store::AnswerStore;
use crate::backend::Backend;
use crate::cache::Cache;
use crate::error::BackendError;
use crate::packs::Packs;
use crate::paired::{self, Draft, PairedSettings};
use crate::probe::{Finding, NullStatistics, Setting, Stop};
use crate::record::Record;
use crate::sections::Section;
use crate::statistics::Statistics;
use crate::view::View;
pub use round::answer_all;
use round::{Asker, Wanted};

/// What is to be run.
#[derive(Debug)]
pub struct Job<'a> {
    /// The probes, in the order of the file.
    pub entries: &'a [Entry],
    /// What random draws begin with.
    pub seed: u64,
    /// How many of the likeliest tokens are compared.
    pub top_k: usize,
    /// The document's sections.
    pub sections: &'a [Section],
    /// The document's text.
    pub document: Option<&'a str>,
    /// Texts that probes need of themselves.
    pub packs: &'a Packs,
    /// The names of the entries to run; all if there is none. Noise that they
    /// are measured by is run as well.
    pub only: &'a [String],
    /// How verdicts are reached.
    pub statistics: Statistics,
    /// Settings of the paired tests; unused with [`Statistics::Reference`].
    pub paired: PairedSettings,
    /// Stops the run between questions once it is set.
    pub cancel: Option<&'a CancelFlag>,
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One for each entry, in the order of the file.
    pub records: Vec<Record>,
    /// What noise gave, if it was run.
    pub nulls: Option<NullStatistics>,
    /// How much was asked.
    pub counters: Counters,
}

/// Why a run gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RunError {
    /// An entry was asked for that is not there.
    #[error("the suite has no entry `{name}`")]
    NoSuchEntry { name: String, near: Option<String>, known: Vec<String> },
    /// The backend cannot go on. What it answered is kept.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The caller set the [`CancelFlag`]. Answers received so far are cached.
    #[error("the run was cancelled")]
    Cancelled,
}

impl Hint for RunError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoSuchEntry { near: Some(near), .. } => Some(format!("write `{near}`")),
            Self::NoSuchEntry { known, .. } if known.is_empty() => Some("the suite is empty".to_owned()),
            Self::NoSuchEntry { known, .. } => Some(format!("entries: {}", known.join(", "))),
            Self::Backend(error) => error.hint(),
            Self::Cancelled => None,
        }
    }
}

/// One entry on its way to a record.
struct Progress<'a> {
    entry: &'a Entry,
    /// The kinds of later entries.
    downstream: Vec<String>,
    found: Option<Found>,
    /// Nothing is left to ask; only the null that it is measured by is.
    waits: bool,
    seconds: f64,
}

/// What a probe gave.
enum Found {
    /// A finding that stands.
    Judged(Finding),
    /// A claim that is judged with all others.
    Drafted(Draft),
}

/// Runs a suite.
pub fn run(
    job: &Job<'_>,
    backend: &mut dyn Backend,
    cache: Option<&mut Cache>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    let mut progress = planned(job)?;
    let capabilities = backend.description().capabilities.clone();
    let mut answers = AnswerStore::new();
    let mut asker = Asker::new(backend, cache, job.cancel);
    let nulls = loop {
        observer.phase(Phase::Reading);
        let setting = Setting {
            answers: &answers,
            base: View::Base,
            tuned: View::Tuned,
            seed: job.seed,
            top_k: job.top_k,
            sections: job.sections,
            document: job.document,
            packs: job.packs,
            capabilities: &capabilities,
            nulls: None,
            statistics: job.statistics,
            downstream: &[],
        };
        let (nulls, wanted) = try_all(&mut progress, &setting, &job.paired, observer);
        answers.take_missing();
        if wanted.is_empty() {
            break nulls;
        }
        if asker.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let names: Vec<&str> = progress.iter().map(|one| one.entry.name.as_str()).collect();
        let round = asker.ask(&wanted, &names, &mut answers, observer)?;
        if asker.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let seconds = match round {
            Ok(seconds) => seconds,
            Err(error) => {
                let record = preflight_record(&error);
                observer.judged(&record);
                return Ok(Outcome { records: vec![record], nulls: None, counters: asker.counters });
            }
        };
        for (one, seconds) in progress.iter_mut().zip(seconds) {
            one.seconds += seconds;
        }
    };
    let records = match job.statistics {
        Statistics::Reference => progress.iter().map(Progress::record).collect(),
        Statistics::Paired => concluded(progress, &job.paired, observer),
    };
    Ok(Outcome { records, nulls, counters: asker.counters })
}

/// Whether there is an entry for every name in `only`. [`run`] looks as well;
/// this tells before anything is loaded.
pub fn check_names(entries: &[Entry], only: &[String]) -> Result<(), RunError> {
    let Some(name) = only.iter().find(|name| !entries.iter().any(|entry| entry.name == **name)) else {
        return Ok(());
    };
    let near = nearest(name, entries.iter().map(|entry| entry.name.as_str())).map(str::to_owned);
    let known = entries.iter().map(|entry| entry.name.clone()).collect();
    Err(RunError::NoSuchEntry { name: name.clone(), near, known })
}

/// The entries to run.
fn planned<'a>(job: &Job<'a>) -> Result<Vec<Progress<'a>>, RunError> {
    check_names(job.entries, job.only)?;
    let named = |entry: &Entry| job.only.is_empty() || job.only.contains(&entry.name);
    // A null before the last named entry may be what that one is measured by.
    let last = job.entries.iter().rposition(named);
    let kept: Vec<&Entry> = job
        .entries
        .iter()
        .enumerate()
        .filter(|(place, entry)| named(entry) || (entry.is_null() && last.is_some_and(|last| *place < last)))
        .map(|(_, entry)| entry)
        .collect();
    Ok((0..kept.len())
        .map(|place| Progress {
            entry: kept[place],
            downstream: kept[place + 1..].iter().map(|later| later.kind.clone()).collect(),
            found: (!kept[place].enabled).then(|| Found::Judged(Finding::skip("the entry is disabled"))),
            waits: false,
            seconds: 0.0,
        })
        .collect())
}

/// Tries every probe that has no finding yet, in the order of the file; returns
/// the nulls in force at the end, and what was looked for in vain.
fn try_all(
    progress: &mut [Progress<'_>],
    setting: &Setting<'_>,
    paired: &PairedSettings,
    observer: &mut dyn Observer,
) -> (Option<NullStatistics>, Wanted) {
    let mut wanted = Wanted::default();
    let mut nulls: Option<NullStatistics> = None;
    // Whether an earlier null is still to come: until then nobody is judged.
    let mut open = false;
    for (place, one) in progress.iter_mut().enumerate() {
        if one.found.is_none() && !(open && one.waits) {
            let started = Instant::now();
            let setting = Setting { nulls: nulls.as_ref(), downstream: &one.downstream, ..setting.clone() };
            let tried = match setting.statistics {
                Statistics::Reference => {
                    one.entry.probe.judge(&setting).map(|found| Found::Judged(found.guarded()))
                }
                Statistics::Paired => one.entry.probe.draft(&setting, paired).map(Found::Drafted),
            };
            one.seconds += started.elapsed().as_secs_f64();
            match tried {
                Ok(found) if !open => one.found = Some(found),
                Ok(_) => one.waits = true,
                Err(Stop::Fault(fault)) => one.found = Some(Found::Judged(Finding::error(fault.to_string()))),
                Err(Stop::Yet) => {
                    let missing = setting.answers.take_missing();
                    if missing.is_empty() {
                        let said = "the probe waits for answers that it did not ask for";
                        one.found = Some(Found::Judged(Finding::error(said)));
                    }
                    wanted.add(place, missing);
                }
            }
            if let Some(Found::Judged(found)) = &mut one.found {
                found.evidence.insert("weight".to_owned(), Value::from(one.entry.weight));
                observer.judged(&one.record());
            }
        }
        match &one.found {
            Some(Found::Judged(Finding { nulls: Some(found), .. })) => nulls = Some(found.clone()),
            None if one.entry.is_null() => open = true,
            _ => {}
        }
    }
    (nulls, wanted)
}

/// Judges all claims together. What stands already counts as no claim.
fn concluded(
    progress: Vec<Progress<'_>>,
    paired: &PairedSettings,
    observer: &mut dyn Observer,
) -> Vec<Record> {
    let mut told = Vec::new();
    let mut drafts = Vec::new();
    for one in progress {
        told.push((one.entry, one.seconds, matches!(one.found, Some(Found::Judged(_)))));
        drafts.push(match one.found {
            Some(Found::Drafted(draft)) => draft,
            Some(Found::Judged(finding)) => Draft::settled(finding),
            None => Draft::settled(Finding::error("it was not judged")),
        });
    }
    let judged = paired::conclude(drafts, paired);
    told.into_iter()
        .zip(judged)
        .map(|((entry, seconds, told), judged)| {
            let mut finding = judged.finding.guarded();
            finding.evidence.insert("weight".to_owned(), Value::from(entry.weight));
            let mut record = finding.into_record(&entry.name, &entry.kind, seconds);
            (record.p_value, record.p_adjusted) = (judged.p_value, judged.p_adjusted);
            if !told {
                observer.judged(&record);
            }
            record
        })
        .collect()
}

impl Progress<'_> {
    /// The record of an entry that was judged by itself.
    fn record(&self) -> Record {
        let found = match &self.found {
            Some(Found::Judged(finding)) => finding.clone(),
            _ => Finding::error("it was not judged"),
        };
        found.into_record(&self.entry.name, &self.entry.kind, self.seconds)
    }
}

fn preflight_record(error: &BackendError) -> Record {
    let said = match error.hint() {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    };
    Finding::error(said).into_record("__preflight__", "preflight", 0.0)
}
