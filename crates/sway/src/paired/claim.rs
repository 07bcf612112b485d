//! Claims of single probes, before all claims of a suite are judged together.

use super::NO_CHANGE;
use crate::backend::Capability;
use crate::probe::{Finding, InconsistentFinding, ProbeContext, Stop};
use crate::record::ProbeVerdict;
use crate::view::View;

/// Settings of the paired tests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedSettings {
    /// Draws of matched noise. A level needs at least `1 / level - 1` draws: 19
    /// for 5 %. With 24 draws, false claims occur at a rate of 4 %.
    pub seeds: u64,
    /// Seed of the first draw; the next draw uses the next seed.
    pub first_seed: u64,
    /// How often a suite may claim a change that is noise.
    pub level: f64,
}

impl Default for PairedSettings {
    fn default() -> Self {
        Self { seeds: 24, first_seed: 1000, level: 0.05 }
    }
}

impl PairedSettings {
    /// Measures the fine-tuned model and, if the backend can draw it, every draw
    /// of matched noise. All measurements run, so that all missing questions are
    /// recorded at once.
    pub fn measure_with_noise<'a, T>(
        &self,
        context: &ProbeContext<'a>,
        measure: impl Fn(&ProbeContext<'a>) -> Result<T, Stop>,
    ) -> Result<(T, Vec<T>), Stop> {
        let observed = measure(context);
        if !context.can(Capability::MatchedNoise) {
            return Ok((observed?, Vec::new()));
        }
        let nulls: Vec<Result<T, Stop>> = (0..self.seeds)
            .map(|run| {
                let view = View::Matched { seed: self.first_seed.wrapping_add(run) };
                measure(&context.with_noise(view, context.seed))
            })
            .collect();
        let mut found = Vec::new();
        let mut pending = matches!(observed, Err(Stop::Pending));
        let mut failed = None;
        for null in nulls {
            match null {
                Ok(value) => found.push(value),
                Err(Stop::Pending) => pending = true,
                Err(stop) => failed = failed.or(Some(stop)),
            }
        }
        if pending {
            return Err(Stop::Pending);
        }
        match failed {
            Some(stop) => Err(stop),
            None => Ok((observed?, found)),
        }
    }
}

/// A finding and the claim that decides its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The finding. Its verdict and score hold only for [`Claim::Settled`].
    pub finding: Finding,
    /// The claim.
    pub claim: Claim,
}

impl Draft {
    /// What in the claim contradicts itself.
    pub(crate) fn inconsistency(&self, paired: &PairedSettings) -> Option<InconsistentFinding> {
        let number = |what: &'static str, number: f64| InconsistentFinding::Claim { what, number };
        let probability = |what, found: f64| (!(0.0..=1.0).contains(&found)).then(|| number(what, found));
        match &self.claim {
            Claim::Settled => None,
            Claim::Change(change) => {
                let is_counted = [0, paired.seeds].contains(&(change.nulls.len() as u64));
                let (found, wanted) = (change.nulls.len(), paired.seeds);
                (!is_counted)
                    .then_some(InconsistentFinding::Draws { found, wanted })
                    .or_else(|| change.fallback_p.and_then(|found| probability("p-value", found)))
            }
            Claim::Limit(limit) | Claim::Shape(limit) => {
                probability("p-value within the limit", limit.within)
                    .or_else(|| probability("p-value beyond the limit", limit.beyond))
            }
        }
    }

    /// A finding whose verdict needs no test.
    pub fn settled(finding: Finding) -> Self {
        Self { finding, claim: Claim::Settled }
    }
}

/// What a probe claims.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Nothing: the verdict of the finding holds.
    Settled,
    /// A number is not that of noise.
    Change(Change),
    /// A number stays within a limit.
    Limit(Limit),
    /// A change, which must exist, behaves well. Noise may behave well too, so
    /// this passes only for a suite that finds a change.
    Shape(Limit),
}

/// The side on which a number is extreme, and the scale that it is compared on.
///
/// The scale is the same for the number and its nulls, so it does not change the
/// rate of false claims. It decides which claims are found: a scale on which
/// noise has a long tail hides what lies beyond the noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Large numbers.
    Upper,
    /// Large gains. Losses count as no gain: noise of the size of a damaging
    /// adapter loses so much, and so variably, that a real gain would not stand
    /// out from its spread.
    Gain,
    /// Positive numbers far from the mean on either side, as ratios.
    Ratio,
}

impl Tail {
    /// The number on the scale of the comparison.
    pub(super) fn scaled(self, value: f64) -> f64 {
        match self {
            Self::Upper => value,
            Self::Gain => value.max(0.0),
            Self::Ratio => value.max(NO_CHANGE).ln(),
        }
    }
}

/// The claim that a number is not that of noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The number of the fine-tuned model.
    pub observed: f64,
    /// The number of each draw of noise, in the order of seeds; empty if the
    /// backend draws none.
    pub nulls: Vec<f64>,
    /// The side on which the number is extreme.
    pub tail: Tail,
    /// The verdict if noise gives as much: `Fail`, or `Inconclusive` where a good
    /// model may do the same.
    pub absent: ProbeVerdict,
    /// The p-value of another test, used if there are no draws of noise.
    pub fallback_p: Option<f64>,
    /// How many units were measured.
    pub units: usize,
    /// What a unit is.
    pub unit: &'static str,
    /// What the numbers are measured in.
    pub effect_unit: EffectUnit,
    /// A verdict that holds whatever the test says, with its reason.
    pub decided: Option<(ProbeVerdict, String)>,
}

/// What the number of a probe is measured in, as messages write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectUnit {
    /// Nats of a whole answer, or of a divergence.
    Nats,
    /// Nats per token.
    NatsPerToken,
    /// A share, written in percent.
    Percent,
    /// A number without a unit.
    Plain,
}

impl EffectUnit {
    /// The range of numbers, as in `0.010 to 0.034 nats`; with two significant
    /// digits where the usual decimals would show none.
    pub(super) fn range(self, values: &[f64]) -> String {
        let (factor, usual, suffix) = match self {
            Self::Nats => (1.0, 3, " nats"),
            Self::NatsPerToken => (1.0, 3, " nats per token"),
            Self::Percent => (100.0, 1, " %"),
            Self::Plain => (1.0, 3, ""),
        };
        let low = factor * values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = factor * values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let largest = low.abs().max(high.abs());
        let decimals = match largest > 0.0 && largest < 10_f64.powi(1 - usual) {
            true => (1.0 - largest.log10().floor()).min(12.0) as usize,
            false => usual as usize,
        };
        format!("{low:.decimals$} to {high:.decimals$}{suffix}")
    }
}

/// The claim that a number stays within a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The limit in the units of the message, as in `limit 30 facts`.
    pub bound: String,
    /// The p-value of the limit being exceeded.
    pub within: f64,
    /// The p-value of the limit being kept.
    pub beyond: f64,
    /// How many units were measured.
    pub units: usize,
    /// How many units would probably decide; none if no number would.
    pub needed: Option<usize>,
    /// What a unit is.
    pub unit: &'static str,
}

impl Limit {
    /// The same claim with its limit in words.
    pub(crate) fn with_bound(self, bound: impl Into<String>) -> Self {
        Self { bound: bound.into(), ..self }
    }
}
