//! One number for a suite, what it means, and whether a gate lets it through.

mod weights;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use weights::{WeightError, Weights};

use crate::category::Category;
use crate::record::{Record, Verdict};
use crate::statistics::Statistics;

/// The most findings that are told.
const MOST_FINDINGS: usize = 5;
/// The highest score of a change that cannot be told from noise: harmless it may
/// be, but it did nothing.
const MOST_OF_NOISE: f64 = 0.29;
/// The probability up to which a change counts as one.
const LEVEL: f64 = 0.05;
/// Below this, a category is worth a word.
const LOW: f64 = 0.3;

/// One number for a suite, and what it was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Between 0 and 1.
    pub overall: f64,
    /// What the number means.
    pub band: Band,
    /// The same for each category; 0 for one without a result.
    pub components: BTreeMap<String, f64>,
    /// What each category counted.
    pub weights: BTreeMap<String, f64>,
    /// What is worth a word, the most important first.
    pub findings: Vec<String>,
}

/// What a score means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Band {
    /// Not to be told from noise.
    #[default]
    Noise,
    /// Something changed, but not all that should.
    Partial,
    /// As it should be.
    Healthy,
    /// Better than results usually are.
    Suspicious,
}

impl Band {
    /// The band of a score.
    pub fn of(overall: f64) -> Self {
        match overall {
            _ if overall < 0.3 => Self::Noise,
            _ if overall < 0.6 => Self::Partial,
            _ if overall <= 0.85 => Self::Healthy,
            _ => Self::Suspicious,
        }
    }

    /// What it says to somebody who has not met the word.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Noise => "the fine-tuning cannot be told from noise",
            Self::Partial => "the fine-tuning did a part of what it should",
            Self::Healthy => "the fine-tuning did what it should",
            Self::Suspicious => "the result is better than results usually are, so look at it twice",
        }
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noise => "noise",
            Self::Partial => "partial",
            Self::Healthy => "healthy",
            Self::Suspicious => "suspicious",
        })
    }
}

impl Score {
    /// The score of records.
    ///
    /// A category is the weighted mean of the scores in it; what was skipped,
    /// failed to run, is undecided or has no score is left out. The whole is the
    /// weighted mean of the categories that have a result. Whatever it is, a
    /// change that no probe can tell from noise is noise.
    pub fn of(records: &[Record], weights: &Weights, statistics: Statistics) -> Self {
        let mut sums: BTreeMap<Category, (f64, f64)> = BTreeMap::new();
        for record in records.iter().filter(|record| counts(record, statistics)) {
            let Some(score) = record.score else { continue };
            let weight = weight_of(record).max(0.0);
            let sum = sums.entry(Category::of_kind(&record.kind)).or_default();
            *sum = (sum.0 + weight * score, sum.1 + weight);
        }
        let component = |category: Category| {
            sums.get(&category).map(|(sum, weight)| sum / if *weight == 0.0 { 1.0 } else { *weight })
        };
        let (mut whole, mut total) = (0.0, 0.0);
        for category in Category::ALL {
            if let (Some(component), Some(weight)) = (component(category), weights.of(category)) {
                whole += weight * component;
                total += weight;
            }
        }
        let overall = whole / if total == 0.0 { 1.0 } else { total };
        let components: BTreeMap<String, f64> = Category::ALL
            .into_iter()
            .map(|category| (category.name().to_owned(), component(category).unwrap_or(0.0)))
            .collect();
        let missing: Vec<Category> = Category::ALL
            .into_iter()
            .filter(|category| component(*category).is_none() && weights.of(*category).unwrap_or(0.0) > 0.0)
            .collect();
        let findings = match statistics {
            Statistics::Reference => reference_findings(records, &components),
            Statistics::Paired => paired_findings(records, &components, &missing),
        };
        let overall = if is_noise(records) { overall.min(MOST_OF_NOISE) } else { overall };
        Self { overall, band: Band::of(overall), components, weights: weights.by_name().clone(), findings }
    }
}

/// Whether a record counts in the score.
pub(crate) fn counts(record: &Record, statistics: Statistics) -> bool {
    match record.verdict {
        Verdict::Skip | Verdict::Error => false,
        Verdict::Inconclusive => statistics == Statistics::Reference,
        Verdict::Pass | Verdict::Fail | Verdict::Warn => true,
    }
}

/// Whether the change was compared with noise, and nowhere differs from it.
fn is_noise(records: &[Record]) -> bool {
    let compared = |record: &&Record| {
        record.evidence.get("null_samples").and_then(Value::as_array).is_some_and(|all| !all.is_empty())
    };
    let mut claims = records.iter().filter(compared).filter_map(|record| record.p_adjusted).peekable();
    claims.peek().is_some() && claims.all(|p| p > LEVEL)
}

/// What an entry counts among others of its category.
fn weight_of(record: &Record) -> f64 {
    record.evidence.get("weight").and_then(Value::as_f64).unwrap_or(1.0)
}

fn failed(record: &Record) -> String {
    format!("{} ({}) failed: {}", record.name, record.kind, record.message)
}

fn low(components: &BTreeMap<String, f64>) -> impl Iterator<Item = String> + '_ {
    let low = components.iter().filter(|(_, score)| (0.0..LOW).contains(*score) && **score > 0.0);
    low.map(|(category, score)| format!("{category} is low: {score:.2}"))
}

fn number_of(records: &[Record], verdict: Verdict) -> usize {
    records.iter().filter(|record| record.verdict == verdict).count()
}

fn plural(number: usize) -> String {
    if number == 1 { "1 probe".to_owned() } else { format!("{number} probes") }
}

/// The first failure, low categories, the number of errors.
fn reference_findings(records: &[Record], components: &BTreeMap<String, f64>) -> Vec<String> {
    let first = records.iter().find(|record| record.verdict == Verdict::Fail).map(failed);
    let mut findings: Vec<String> = first.into_iter().chain(low(components)).collect();
    let errors = number_of(records, Verdict::Error);
    if errors > 0 {
        findings.push(format!("{} could not be carried out", plural(errors)));
    }
    findings.truncate(MOST_FINDINGS);
    findings
}

/// Errors, all failures, what is undecided, what nobody looked at, low
/// categories. If there are more than fit, the last line says how many.
fn paired_findings(
    records: &[Record],
    components: &BTreeMap<String, f64>,
    missing: &[Category],
) -> Vec<String> {
    let mut findings = Vec::new();
    let errors = number_of(records, Verdict::Error);
    if errors > 0 {
        findings.push(format!("{} could not be carried out", plural(errors)));
    }
    findings.extend(records.iter().filter(|record| record.verdict == Verdict::Fail).map(failed));
    let undecided = number_of(records, Verdict::Inconclusive);
    if undecided > 0 {
        findings.push(format!("the data of {} do not decide", plural(undecided)));
    }
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|category| category.name()).collect();
        findings.push(format!("nothing is known of {}: no probe of it has a score", names.join(", ")));
    }
    findings.extend(low(components));
    if findings.len() > MOST_FINDINGS {
        let more = findings.len() - (MOST_FINDINGS - 1);
        findings.truncate(MOST_FINDINGS - 1);
        findings.push(format!("and {more} more"));
    }
    findings
}

/// Why a gate does not let a suite through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Refusal {
    /// A probe failed.
    #[error("{name} failed: {message}")]
    Failed { name: String, message: String },
    /// A probe could not be carried out, so nobody knows.
    #[error("{name} could not be carried out: {message}")]
    Errored { name: String, message: String },
    /// The score is too low.
    #[error("the score is {overall:.3}, below {threshold}")]
    Low { overall: f64, threshold: f64 },
}

/// Why a gate does not let a suite through; nothing if it does.
pub fn refusals(records: &[Record], score: &Score, threshold: f64) -> Vec<Refusal> {
    let told = |record: &Record| {
        let (name, message) = (record.name.clone(), record.message.clone());
        match record.verdict {
            Verdict::Fail => Some(Refusal::Failed { name, message }),
            Verdict::Error => Some(Refusal::Errored { name, message }),
            _ => None,
        }
    };
    let mut refusals: Vec<Refusal> = records.iter().filter_map(told).collect();
    // Also for what is no number.
    if score.overall.is_nan() || score.overall < threshold {
        refusals.push(Refusal::Low { overall: score.overall, threshold });
    }
    refusals
}

#[cfg(test)]
mod tests;
