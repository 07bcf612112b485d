//! Calibration of the reference statistics: numbers that noise in place of the
//! adapter gives, and z-scores against them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::context::ProbeContext;
use super::evidence::Calibration;
use crate::numbers::logistic::logistic_score;
use crate::numbers::{mean, population_std};
use crate::record::ProbeVerdict;

/// The least standard deviation of a null distribution.
const LEAST_STD: f64 = 1e-6;

/// The null distribution of one kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindNull {
    /// Mean over the draws of noise.
    pub mean: f64,
    /// Population standard deviation, at least 1e-6.
    pub std: f64,
    /// The number of draws.
    pub n: f64,
    /// 1 if z-scores are undefined: a single draw, or no variance.
    pub degenerate: f64,
}

impl KindNull {
    /// The null distribution of samples; none without samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let (mean, std) = (mean(samples)?, population_std(samples)?);
        let degenerate = samples.len() <= 1 || std == 0.0;
        Some(Self {
            mean,
            std: std.max(LEAST_STD),
            n: samples.len() as f64,
            degenerate: f64::from(u8::from(degenerate)),
        })
    }

    /// The z-score of a number; none if it is undefined.
    pub fn z_score(&self, raw: f64) -> Option<f64> {
        let defined = [self.mean, self.std, raw].iter().all(|value| value.is_finite())
            && self.degenerate == 0.0
            && self.std >= LEAST_STD;
        defined.then(|| (raw - self.mean) / self.std)
    }
}

/// The null distributions of a suite, by kind of probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NullStatistics {
    /// The distributions that verdicts use: those of the adapter's own rank if
    /// it was drawn.
    pub by_kind: BTreeMap<String, KindNull>,
    /// The distributions of every rank multiplier, in the order of the suite,
    /// under names such as `rank_1.00`.
    pub by_rank: Vec<(String, BTreeMap<String, KindNull>)>,
}

/// Whether higher or lower numbers are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// A verdict by the rules of dlm-sway.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    pub(crate) verdict: ProbeVerdict,
    pub(crate) score: f64,
}

/// The z-score of a number, positive if it is better than noise, and the same
/// by rank.
pub(crate) fn calibrate(
    context: &ProbeContext<'_>,
    kind: &str,
    raw: Option<f64>,
    better: Better,
) -> (Option<f64>, Calibration) {
    let sign = match better {
        Better::Higher => 1.0,
        Better::Lower => -1.0,
    };
    let (Some(nulls), Some(raw)) = (context.nulls, raw) else { return (None, Calibration::default()) };
    let of = |nulls: &BTreeMap<String, KindNull>| nulls.get(kind)?.z_score(raw).map(|z| sign * z);
    let ranks: BTreeMap<String, f64> =
        nulls.by_rank.iter().filter_map(|(rank, nulls)| Some((rank.clone(), of(nulls)?))).collect();
    (of(&nulls.by_kind), Calibration { z_by_rank: (!ranks.is_empty()).then_some(ranks) })
}

/// The rule of dlm-sway: a z-score, if there is one, decides alone.
pub(crate) fn decide(z: Option<f64>, limit: f64, otherwise: impl FnOnce() -> (bool, f64)) -> Decision {
    let (passed, score) = match z {
        Some(found) => (found >= limit, logistic_score(found)),
        None => otherwise(),
    };
    Decision { verdict: if passed { ProbeVerdict::Pass } else { ProbeVerdict::Fail }, score }
}

/// The end of a message: the z-score, or that there is none.
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
    fn equal_draws_have_no_z_score() {
        let null = KindNull::of(&[0.5; 3]).unwrap();
        assert_eq!(null, KindNull { mean: 0.5, std: 1e-6, n: 3.0, degenerate: 1.0 });
        assert_eq!(null.z_score(0.7), None);
        assert_eq!(KindNull::of(&[0.5]).unwrap().degenerate, 1.0);
        assert_eq!(KindNull::of(&[]), None);
    }

    #[test]
    fn z_scores_are_those_of_dlm_sway() {
        let null =
            KindNull::of(&[0.00015976885298281632, 0.00012425823730673424, 0.00015163067165132474]).unwrap();
        assert_eq!(null.mean, 0.00014521925398029177);
        assert!((null.z_score(0.08226926114613604).unwrap() - 5406.637817477565).abs() < 1e-6);
        // A deviation below the floor counts as the floor.
        let tiny = KindNull::of(&[5.4210108624275225e-21, 0.0, 1.0842021724855045e-20]).unwrap();
        assert_eq!((tiny.std, tiny.degenerate), (1e-6, 0.0));
        assert!((tiny.z_score(5.204170427930421e-19).unwrap() - 5.149960319306146e-13).abs() < 1e-24);
        assert_eq!(tiny.z_score(f64::NAN), None);
    }

    #[test]
    fn a_z_score_decides_alone() {
        let never = || unreachable!("the z-score decides");
        assert_eq!(decide(Some(3.0), 3.0, never).verdict, ProbeVerdict::Pass);
        assert_eq!(decide(Some(2.9), 3.0, never).verdict, ProbeVerdict::Fail);
        assert_eq!(decide(None, 3.0, || (true, 0.25)), Decision { verdict: ProbeVerdict::Pass, score: 0.25 });
    }
}
