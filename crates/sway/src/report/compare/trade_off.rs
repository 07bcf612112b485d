//! Learning against forgetting, run by run.

use serde::{Deserialize, Serialize};

use crate::numbers::student_t::TTest;
use crate::probe::{
    CalibrationDrift, ExternalPerplexity, ItemResults, ParaphraseInvariance, PreferenceFlip, ProbeKind,
    SectionInternalization,
};
use crate::record::Record;
use crate::report::Report;

/// Kinds that measure forgetting, the preferred first, and what they lose.
const FORGETTING: [(&str, &str); 2] = [
    (ExternalPerplexity::ABOUT.kind, "lost on neutral text"),
    (CalibrationDrift::ABOUT.kind, "lost on common facts"),
];

/// Kinds that measure learning, the preferred first, and what they gain.
const LEARNING: [(&str, &str); 3] = [
    (SectionInternalization::ABOUT.kind, "gained on the document"),
    (ParaphraseInvariance::ABOUT.kind, "gained on taught answers"),
    (PreferenceFlip::ABOUT.kind, "gained on preferences"),
];

/// What each run learned and what it forgot, against the base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TradeOff {
    /// The horizontal axis: what was forgotten, with its unit.
    pub forgetting: String,
    /// The vertical axis: what was learned, with its unit.
    pub learning: String,
    /// One for each run that measured both, in their order.
    pub points: Vec<TradeOffPoint>,
}

/// What one run learned and forgot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TradeOffPoint {
    /// The name of the run.
    pub label: String,
    /// What was lost against the base; 0 is nothing.
    pub forgetting: Estimate,
    /// What was gained against the base.
    pub learning: Estimate,
}

/// A mean over items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its 95 % confidence interval.
    pub ci_95: Option<[f64; 2]>,
}

impl Estimate {
    fn of(values: &[f64]) -> Option<Self> {
        let mean = crate::numbers::mean(values).filter(|mean| mean.is_finite())?;
        Some(Self { mean, ci_95: TTest::of(values).map(|test| test.confidence_interval()) })
    }
}

impl TradeOff {
    /// The trade-off of runs with their names; none unless some kind that
    /// measures learning and some that measures forgetting have items in one.
    pub fn of(runs: &[(String, Report)]) -> Option<Self> {
        let (forgotten, forgetting, lost_unit) = axis(runs, &FORGETTING)?;
        let (learned, learning, gained_unit) = axis(runs, &LEARNING)?;
        let point = |(label, run): &(String, Report)| {
            let losses: Vec<f64> = gains(run, forgotten)?.into_iter().map(|gain| -gain).collect();
            Some(TradeOffPoint {
                label: label.clone(),
                forgetting: Estimate::of(&losses)?,
                learning: Estimate::of(&gains(run, learned)?)?,
            })
        };
        let points: Vec<TradeOffPoint> = runs.iter().filter_map(point).collect();
        (!points.is_empty()).then(|| Self {
            forgetting: format!("{lost_unit} {forgetting}"),
            learning: format!("{gained_unit} {learning}"),
            points,
        })
    }
}

/// The kind that most runs measured, what it means, and its unit.
fn axis(
    runs: &[(String, Report)],
    kinds: &[(&'static str, &'static str)],
) -> Option<(&'static str, &'static str, String)> {
    let measured = |kind: &str| runs.iter().filter(|(_, run)| results(run, kind).is_some()).count();
    let most = kinds.iter().map(|(kind, _)| measured(kind)).max().filter(|most| *most > 0)?;
    let (kind, meaning) = kinds.iter().find(|(kind, _)| measured(kind) == most)?;
    let unit = runs.iter().find_map(|(_, run)| results(run, kind))?.item_unit;
    Some((kind, meaning, unit))
}

fn results(run: &Report, kind: &str) -> Option<ItemResults> {
    let found = |record: &Record| record.evidence.read::<ItemResults>().filter(|one| !one.items.is_empty());
    run.probes.iter().filter(|record| record.kind == kind).find_map(found)
}

fn gains(run: &Report, kind: &str) -> Option<Vec<f64>> {
    let results = results(run, kind)?;
    Some(results.items.iter().map(|item| results.gain(item)).collect())
}
