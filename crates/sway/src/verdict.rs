//! The verdict of a report: what changed, what was learned, what was lost.
//!
//! A verdict is a decision, not a mean: each question is answered from the probes
//! that ask it, and proven damage outweighs everything else. Every output
//! (terminal, JSON, Markdown, JUnit, HTML, `gate`, `check`, `quickstart`) renders
//! this one type.

mod headline;
mod pooled_learning;

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use headline::AnsweredQuestion;
use pooled_learning::PooledLearning;

use crate::probe::{NullComparison, RawLimit, TaughtWordsOnly};
use crate::record::{ProbeVerdict, Record};
use crate::score::LEVEL;

/// The question that a probe helps to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// Did the model change more than noise would change it?
    Change,
    /// Did it learn what it was trained on?
    Learning,
    /// Does it recite what it was trained on, instead of having learned it?
    Memorization,
    /// Did it lose what it knew?
    Damage,
    /// How the change behaves: no question of the verdict depends on it.
    #[default]
    Behavior,
}

/// How the question of an [`Aspect`] was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Proven.
    Yes,
    /// The opposite is proven.
    No,
    /// Probes asked, and the data do not decide.
    Undecided,
    /// No probe of the suite asked, or none could run.
    #[default]
    NotTested,
}

/// A decision with the facts that support it, the strongest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// The decision.
    pub decision: Decision,
    /// Facts in units, as in `lost 150 of 200 facts; limit 30`.
    pub evidence: Vec<String>,
}

/// The verdict of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// Did the model change more than noise would change it?
    pub changed: Conclusion,
    /// Did it learn what it was trained on?
    pub learned: Conclusion,
    /// Does it recite what it was trained on, instead of having learned it?
    pub memorized: Conclusion,
    /// Did it lose what it knew?
    pub damaged: Conclusion,
    /// Names of all entries that failed.
    pub failed: Vec<String>,
}

/// How good a verdict is, for colours and exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Learned, no damage where it was tested, and no probe failed.
    Healthy,
    /// Something is undecided, was not tested, or failed without proving damage.
    Unclear,
    /// Indistinguishable from noise, or nothing was learned.
    Ineffective,
    /// The training data are recited.
    Memorized,
    /// Damage is proven. Nothing else can outweigh this.
    Damaged,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Undecided => "undecided",
            Self::NotTested => "not tested",
        })
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Healthy => "healthy",
            Self::Unclear => "unclear",
            Self::Ineffective => "ineffective",
            Self::Memorized => "memorized",
            Self::Damaged => "damaged",
        })
    }
}

impl Grade {
    /// Whether the verdict alone is a reason to refuse the model.
    pub fn is_bad(self) -> bool {
        self >= Self::Ineffective
    }
}

impl Verdict {
    /// The verdict of records.
    ///
    /// The verdicts of probes decide, and under the reference statistics the limits
    /// of those that look for harm. Paired tests also count any claim that noise
    /// does not reach as a change.
    pub fn of(records: &[Record]) -> Self {
        Self {
            changed: changed(records),
            learned: learned(records),
            memorized: memorized(records),
            damaged: damaged(records),
            failed: records
                .iter()
                .filter(|record| outcome(record) == ProbeVerdict::Fail)
                .map(|record| record.name.clone())
                .collect(),
        }
    }

    /// The grade. Damage outweighs everything.
    pub fn grade(&self) -> Grade {
        let [changed, learned, memorized, damaged] =
            [&self.changed, &self.learned, &self.memorized, &self.damaged].map(|one| one.decision);
        match (changed, learned, memorized, damaged) {
            (_, _, _, Decision::Yes) => Grade::Damaged,
            (_, _, Decision::Yes, _) => Grade::Memorized,
            (Decision::No, ..) | (_, Decision::No, ..) => Grade::Ineffective,
            (Decision::Yes, Decision::Yes, Decision::No | Decision::NotTested, Decision::No)
                if self.failed.is_empty() =>
            {
                Grade::Healthy
            }
            _ => Grade::Unclear,
        }
    }
}

/// Records of an aspect that were meant to run, by outcome.
#[derive(Default)]
struct Votes<'a> {
    passed: Vec<&'a Record>,
    failed: Vec<&'a Record>,
    undecided: Vec<&'a Record>,
}

impl<'a> Votes<'a> {
    fn of(records: impl Iterator<Item = &'a Record>) -> Self {
        let mut votes = Self::default();
        for record in records {
            match outcome(record) {
                ProbeVerdict::Pass => votes.passed.push(record),
                ProbeVerdict::Fail => votes.failed.push(record),
                // A probe that could not run leaves its question open.
                ProbeVerdict::Warn | ProbeVerdict::Inconclusive | ProbeVerdict::Error => {
                    votes.undecided.push(record);
                }
                ProbeVerdict::Skip => {}
            }
        }
        votes
    }

    /// Yes if a record of `yes` exists; no if only records of `no` do.
    fn conclude(yes: &[&Record], no: &[&Record], undecided: &[&Record]) -> Conclusion {
        let decision = match (yes, no, undecided) {
            ([_, ..], ..) => Decision::Yes,
            (_, _, [_, ..]) => Decision::Undecided,
            (_, [_, ..], _) => Decision::No,
            _ => Decision::NotTested,
        };
        let evidence = match decision {
            Decision::No => no.iter().chain(undecided).chain(yes),
            Decision::Undecided => undecided.iter().chain(no).chain(yes),
            _ => yes.iter().chain(no).chain(undecided),
        };
        Conclusion { decision, evidence: evidence.map(|record| fact(record)).collect() }
    }
}

/// The verdict of a record. The reference asks probes of harm for more than no
/// harm (three deviations above small noise), so that harmless models fail:
/// there the limit decides, not the verdict.
fn outcome(record: &Record) -> ProbeVerdict {
    let of_harm = matches!(record.about().aspect, Aspect::Damage | Aspect::Memorization);
    let judged = matches!(record.verdict, ProbeVerdict::Pass | ProbeVerdict::Fail | ProbeVerdict::Warn);
    let tested = record.p_value.is_some();
    match (record.raw, record.evidence.read::<RawLimit>()) {
        (Some(raw), Some(limit)) if of_harm && judged && !tested => match limit.holds(raw) {
            true => ProbeVerdict::Pass,
            false => ProbeVerdict::Fail,
        },
        _ => record.verdict,
    }
}

fn of_aspect(records: &[Record], aspect: Aspect) -> impl Iterator<Item = &Record> {
    records.iter().filter(move |record| record.about().aspect == aspect)
}

/// A fact of a record, with the name of its entry.
fn fact(record: &Record) -> String {
    match record.verdict {
        ProbeVerdict::Error => format!("{} could not run: {}", record.name, record.message),
        _ => format!("{}: {}", record.name, record.message),
    }
}

/// Whether noise of the adapter's size would not have measured this.
fn beats_noise(record: &Record) -> bool {
    let compared =
        record.evidence.read::<NullComparison>().is_some_and(|noise| !noise.null_samples.is_empty());
    compared && record.p_adjusted.is_some_and(|p| p <= LEVEL)
}

fn changed(records: &[Record]) -> Conclusion {
    let votes = Votes::of(of_aspect(records, Aspect::Change));
    // Whatever noise does not reach is a change too, also where the probe fails
    // for another reason.
    let others = records.iter().filter(|record| record.about().aspect != Aspect::Change);
    let others: Vec<&Record> = others.filter(|record| beats_noise(record)).collect();
    Votes::conclude(&[votes.passed, others].concat(), &votes.failed, &votes.undecided)
}

/// All probes together, or else the majority of those that decide. A model that
/// was only damaged may still prefer some taught answers, so one pass among
/// failures proves nothing.
///
/// All probes together are asked only where one of them beats noise by itself. The
/// p-values of single probes are corrected for the number of claims in the suite,
/// so noise passes this gate, and is called changed or learned, at the rate of that
/// one test. A second test beside it would claim as often again.
fn learned(records: &[Record]) -> Conclusion {
    let Votes { passed, failed, undecided } = Votes::of(of_aspect(records, Aspect::Learning));
    let open = passed.iter().any(|record| beats_noise(record));
    let pooled = PooledLearning::of(records).filter(|pooled| open && pooled.is_found());
    if let Some(pooled) = pooled {
        let mut alone = Votes::conclude(&passed, &failed, &undecided);
        // Facts in units come first, where they suffice.
        if passed.len() > failed.len() {
            alone.evidence.push(pooled.fact());
            return alone;
        }
        return pooled.conclude(alone);
    }
    match passed.len().cmp(&failed.len()) {
        Ordering::Greater => Votes::conclude(&passed, &failed, &undecided),
        Ordering::Less => {
            let against = Votes::conclude(&failed, &passed, &undecided);
            Conclusion { decision: Decision::No, ..against }
        }
        Ordering::Equal => Votes::conclude(&[], &[], &[passed, failed, undecided].concat()),
    }
}

fn memorized(records: &[Record]) -> Conclusion {
    let mut votes = Votes::of(of_aspect(records, Aspect::Memorization));
    let by_heart = |record: &&Record| {
        record.evidence.read::<TaughtWordsOnly>().is_some_and(|found| found.taught_words_only)
    };
    votes.failed.extend(of_aspect(records, Aspect::Learning).filter(by_heart));
    Votes::conclude(&votes.failed, &votes.passed, &votes.undecided)
}

fn damaged(records: &[Record]) -> Conclusion {
    let votes = Votes::of(of_aspect(records, Aspect::Damage));
    Votes::conclude(&votes.failed, &votes.passed, &votes.undecided)
}

#[cfg(test)]
mod tests;
