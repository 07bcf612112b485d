//! The score of a suite, its meaning, and whether it passes a gate.

mod weights;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use weights::{WeightError, Weights};

use crate::category::Category;
use crate::probe::{EntryWeight, NullComparison};
use crate::record::{ProbeVerdict, Record};
use crate::report::Report;
use crate::statistics::Statistics;
use crate::verdict::{Grade, Verdict};

/// The most findings under the reference statistics, as in dlm-sway.
const MOST_FINDINGS: usize = 5;
/// The highest score of a change that is indistinguishable from noise: it may
/// be harmless, but it has no effect.
const MOST_OF_NOISE: f64 = 0.29;
/// The level at which a change differs from noise.
pub(crate) const LEVEL: f64 = 0.05;
/// The score below which a category is listed as a finding.
const LOW: f64 = 0.3;

/// The score of a suite, and its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// From 0 to 1.
    pub overall: f64,
    /// What the score means.
    pub band: Band,
    /// The score of each category; 0 without a result.
    pub components: BTreeMap<String, f64>,
    /// The weight of each category.
    pub weights: BTreeMap<String, f64>,
    /// What a reader should look at, the most important first.
    pub findings: Vec<String>,
}

/// What a score means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Band {
    /// Indistinguishable from noise.
    #[default]
    Noise,
    /// Some of the wanted changes.
    Partial,
    /// The wanted changes.
    Healthy,
    /// Better than usual results.
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

    /// The band, lowered to partial unless the verdict is healthy.
    fn at_most(self, grade: Grade) -> Self {
        match (self, grade) {
            (Self::Healthy | Self::Suspicious, Grade::Healthy) => self,
            (Self::Healthy | Self::Suspicious, _) => Self::Partial,
            _ => self,
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
    /// The score of a category is the weighted mean of its records, without
    /// those that were skipped, could not run, are inconclusive or have no score.
    /// The overall score is the weighted mean of the categories with a result,
    /// capped if no probe distinguishes the change from noise.
    pub fn of(records: &[Record], weights: &Weights, statistics: Statistics) -> Self {
        let mut sums: BTreeMap<Category, (f64, f64)> = BTreeMap::new();
        for record in records.iter().filter(|record| counts(record, statistics)) {
            let Some(score) = record.score else { continue };
            let weight = weight_of(record).max(0.0);
            let sum = sums.entry(record.category()).or_default();
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
        let band = match statistics {
            Statistics::Reference => Band::of(overall),
            // A mean cannot outvote the verdict.
            Statistics::Paired => Band::of(overall).at_most(Verdict::of(records).grade()),
        };
        Self { overall, band, components, weights: weights.by_name().clone(), findings }
    }
}

/// Whether a record counts in the score.
pub(crate) fn counts(record: &Record, statistics: Statistics) -> bool {
    match record.verdict {
        ProbeVerdict::Skip | ProbeVerdict::Error => false,
        ProbeVerdict::Inconclusive => statistics == Statistics::Reference,
        ProbeVerdict::Pass | ProbeVerdict::Fail | ProbeVerdict::Warn => true,
    }
}

/// Whether probes compared the change with noise, and none found a difference.
fn is_noise(records: &[Record]) -> bool {
    let compared = |record: &&Record| {
        record.evidence.read::<NullComparison>().is_some_and(|noise| !noise.null_samples.is_empty())
    };
    let mut claims = records.iter().filter(compared).filter_map(|record| record.p_adjusted).peekable();
    claims.peek().is_some() && claims.all(|p| p > LEVEL)
}

/// The weight of an entry within its category.
fn weight_of(record: &Record) -> f64 {
    record.evidence.read::<EntryWeight>().map_or(1.0, |entry| entry.weight)
}

fn failed(record: &Record) -> String {
    format!("{} ({}) failed: {}", record.name, record.kind, record.message)
}

fn low(components: &BTreeMap<String, f64>) -> impl Iterator<Item = String> + '_ {
    let low = components.iter().filter(|(_, score)| (0.0..LOW).contains(*score) && **score > 0.0);
    low.map(|(category, score)| format!("{category} is low: {score:.2}"))
}

fn number_of(records: &[Record], verdict: ProbeVerdict) -> usize {
    records.iter().filter(|record| record.verdict == verdict).count()
}

fn plural(number: usize) -> String {
    if number == 1 { "1 probe".to_owned() } else { format!("{number} probes") }
}

/// The first failure, low categories, the number of errors.
fn reference_findings(records: &[Record], components: &BTreeMap<String, f64>) -> Vec<String> {
    let first = records.iter().find(|record| record.verdict == ProbeVerdict::Fail).map(failed);
    let mut findings: Vec<String> = first.into_iter().chain(low(components)).collect();
    let errors = number_of(records, ProbeVerdict::Error);
    if errors > 0 {
        findings.push(format!("{} could not run", plural(errors)));
    }
    findings.truncate(MOST_FINDINGS);
    findings
}

/// Errors, failures, inconclusive probes, categories without a score, low
/// categories.
fn paired_findings(
    records: &[Record],
    components: &BTreeMap<String, f64>,
    missing: &[Category],
) -> Vec<String> {
    let mut findings = Vec::new();
    let errors = number_of(records, ProbeVerdict::Error);
    if errors > 0 {
        findings.push(format!("{} could not run", plural(errors)));
    }
    findings.extend(records.iter().filter(|record| record.verdict == ProbeVerdict::Fail).map(failed));
    let undecided = number_of(records, ProbeVerdict::Inconclusive);
    if undecided > 0 {
        findings.push(format!("inconclusive: {}", plural(undecided)));
    }
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|category| category.name()).collect();
        findings.push(format!("no probe has a score for {}", names.join(", ")));
    }
    findings.extend(low(components));
    findings
}

/// Why a suite does not pass a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Refusal {
    #[error("{headline}")]
    Verdict { headline: String },
    #[error("{name} failed: {message}")]
    Failed { name: String, message: String },
    #[error("{name} could not run: {message}")]
    Errored { name: String, message: String },
    #[error("the score is {overall:.3}, below {threshold}")]
    Low { overall: f64, threshold: f64 },
}

/// Why a report does not pass a gate; empty if it passes.
pub fn refusals(report: &Report, threshold: f64) -> Vec<Refusal> {
    let Report { probes: records, score, verdict, .. } = report;
    let refusal = |record: &Record| {
        let (name, message) = (record.name.clone(), record.message.clone());
        match record.verdict {
            ProbeVerdict::Fail => Some(Refusal::Failed { name, message }),
            ProbeVerdict::Error => Some(Refusal::Errored { name, message }),
            _ => None,
        }
    };
    let bad = verdict.grade().is_bad().then(|| Refusal::Verdict { headline: verdict.headline() });
    let mut refusals: Vec<Refusal> = bad.into_iter().chain(records.iter().filter_map(refusal)).collect();
    // A score that is NaN does not pass.
    if score.overall.is_nan() || score.overall < threshold {
        refusals.push(Refusal::Low { overall: score.overall, threshold });
    }
    refusals
}

#[cfg(test)]
mod tests;
