//! What noise in place of the adapter gives, and numbers measured by it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::setting::Setting;
use crate::numbers::logistic::logistic_score;
use crate::numbers::{mean, population_std};
use crate::record::Verdict;

/// The least deviation that a null can have.
pub(crate) const LEAST_DEVIATION: f64 = 1e-6;

/// What noise gave for one kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindNull {
    /// The mean over runs.
    pub mean: f64,
    /// The population deviation, at least 1e-6.
    pub std: f64,
    /// How many runs gave a number.
    pub n: f64,
    /// 1 if nothing can be measured by it: a single run, or no spread at all.
    pub degenerate: f64,
}

impl KindNull {
    /// What some runs gave; nothing for no runs.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let (mean, deviation) = (mean(samples)?, population_std(samples)?);
        let degenerate = samples.len() <= 1 || deviation == 0.0;
        Some(Self {
            mean,
            std: deviation.max(LEAST_DEVIATION),
            n: samples.len() as f64,
            degenerate: f64::from(u8::from(degenerate)),
        })
    }

    /// A number in deviations from the mean; nothing if that says nothing.
    pub fn deviations(&self, raw: f64) -> Option<f64> {
        let usable = [self.mean, self.std, raw].iter().all(|value| value.is_finite())
            && self.degenerate == 0.0
            && self.std >= LEAST_DEVIATION;
        usable.then(|| (raw - self.mean) / self.std)
    }
}

/// What noise gave, by kind of probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NullStatistics {
    /// That which verdicts use: of the adapter's own rank where that was run.
    pub by_kind: BTreeMap<String, KindNull>,
    /// The same for every multiplier of the rank, in the order of the file,
    /// under `rank_1.00` and the like.
    pub by_rank: Vec<(String, BTreeMap<String, KindNull>)>,
}

/// Whether more or less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// What a null says of a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    pub(crate) verdict: Verdict,
    pub(crate) score: f64,
}

/// A number's place among a kind's nulls: the deviation, signed so that more
/// is better, and the same by rank.
pub(crate) fn deviations(
    setting: &Setting<'_>,
    kind: &str,
    raw: Option<f64>,
    better: Better,
) -> (Option<f64>, Value) {
    let sign = match better {
        Better::Higher => 1.0,
        Better::Lower => -1.0,
    };
    let (Some(nulls), Some(raw)) = (setting.nulls, raw) else { return (None, Value::Null) };
    let of = |nulls: &BTreeMap<String, KindNull>| nulls.get(kind)?.deviations(raw).map(|z| sign * z);
    let ranks: Map<String, Value> = nulls
        .by_rank
        .iter()
        .filter_map(|(rank, nulls)| Some((rank.clone(), Value::from(of(nulls)?))))
        .collect();
    let ranks = if ranks.is_empty() { Value::Null } else { Value::Object(ranks) };
    (of(&nulls.by_kind), ranks)
}

/// The rule of dlm-sway: a deviation, if there is one, decides alone.
pub(crate) fn decide(z: Option<f64>, limit: f64, otherwise: impl FnOnce() -> (bool, f64)) -> Decision {
    let (passed, score) = match z {
        Some(found) => (found >= limit, logistic_score(found)),
        None => otherwise(),
    };
    Decision { verdict: if passed { Verdict::Pass } else { Verdict::Fail }, score }
}

/// How a message ends: the deviation, or that there is none.
pub(crate) fn ending(z: Option<f64>, kind: &str) -> String {
    match z {
        Some(z) => format!(", z={z:+.2}σ against noise"),
        None => format!(" (no calibration for {kind})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_of_equal_runs_measures_nothing() {
        let null = KindNull::of(&[0.5; 3]).unwrap();
        assert_eq!(null, KindNull { mean: 0.5, std: 1e-6, n: 3.0, degenerate: 1.0 });
        assert_eq!(null.deviations(0.7), None);
        assert_eq!(KindNull::of(&[0.5]).unwrap().degenerate, 1.0);
        assert_eq!(KindNull::of(&[]), None);
    }

    #[test]
    fn deviations_are_those_of_dlm_sway() {
        let null =
            KindNull::of(&[0.00015976885298281632, 0.00012425823730673424, 0.00015163067165132474]).unwrap();
        assert_eq!(null.mean, 0.00014521925398029177);
        assert!((null.deviations(0.08226926114613604).unwrap() - 5406.637817477565).abs() < 1e-6);
        // Spread below the floor counts as the floor.
        let tiny = KindNull::of(&[5.4210108624275225e-21, 0.0, 1.0842021724855045e-20]).unwrap();
        assert_eq!((tiny.std, tiny.degenerate), (1e-6, 0.0));
        assert!((tiny.deviations(5.204170427930421e-19).unwrap() - 5.149960319306146e-13).abs() < 1e-24);
        assert_eq!(tiny.deviations(f64::NAN), None);
    }

    #[test]
    fn a_deviation_decides_alone() {
        let never = || unreachable!("the deviation decides");
        assert_eq!(decide(Some(3.0), 3.0, never).verdict, Verdict::Pass);
        assert_eq!(decide(Some(2.9), 3.0, never).verdict, Verdict::Fail);
        assert_eq!(decide(None, 3.0, || (true, 0.25)), Decision { verdict: Verdict::Pass, score: 0.25 });
    }
}
