//! What a probe claims before all probes are looked at together.

use crate::backend::Capability;
use crate::probe::{Finding, Setting, Stop};
use crate::record::Verdict;
use crate::view::View;

/// How verdicts are reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedSettings {
    /// How many matched changes are drawn. A claim at a level needs at least
    /// one over the level, less one: 19 for 5 %. With 24 the rate of false
    /// claims is 4 %.
    pub seeds: u64,
    /// The first one's seed; the next has the next number.
    pub first_seed: u64,
    /// How often a suite may claim what is not so.
    pub level: f64,
}

impl Default for PairedSettings {
    fn default() -> Self {
        Self { seeds: 24, first_seed: 1000, level: 0.05 }
    }
}

impl PairedSettings {
    /// A measurement of the tuned model, and the same of every matched change
    /// if the backend can make them. All are tried, so that all questions are
    /// noted at once.
    pub(crate) fn measured<'a, T>(
        &self,
        setting: &Setting<'a>,
        measure: impl Fn(&Setting<'a>) -> Result<T, Stop>,
    ) -> Result<(T, Vec<T>), Stop> {
        let observed = measure(setting);
        if !setting.can(Capability::MatchedNoise) {
            return Ok((observed?, Vec::new()));
        }
        let nulls: Vec<Result<T, Stop>> = (0..self.seeds)
            .map(|run| {
                let view = View::Matched { seed: self.first_seed.wrapping_add(run) };
                measure(&setting.with_noise(view, setting.seed))
            })
            .collect();
        let mut found = Vec::new();
        let mut yet = matches!(observed, Err(Stop::Yet));
        let mut fault = None;
        for null in nulls {
            match null {
                Ok(value) => found.push(value),
                Err(Stop::Yet) => yet = true,
                Err(stop) => fault = fault.or(Some(stop)),
            }
        }
        if yet {
            return Err(Stop::Yet);
        }
        match fault {
            Some(stop) => Err(stop),
            None => Ok((observed?, found)),
        }
    }
}

/// A finding, and what it hangs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The finding. Its verdict and score stand only if nothing is claimed.
    pub finding: Finding,
    /// What is claimed.
    pub claim: Claim,
}

impl Draft {
    /// A finding that hangs on nothing.
    pub fn settled(finding: Finding) -> Self {
        Self { finding, claim: Claim::Settled }
    }
}

/// What a finding hangs on.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Nothing.
    Settled,
    /// That a number is not that of noise.
    Change(Change),
    /// That a number keeps to a limit.
    Limit(Limit),
    /// That a change, which there must be, behaves well: noise would, too.
    Shape(Limit),
}

/// To which side a number is remarkable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// If it is large.
    Upper,
    /// If it is far from the others.
    Both,
}

/// That a number is not that of noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The number.
    pub observed: f64,
    /// The same under each matched change, in the order of seeds. Empty if the
    /// backend has none.
    pub nulls: Vec<f64>,
    /// To which side it is remarkable.
    pub tail: Tail,
    /// The probability by another test, for want of matched changes.
    pub otherwise: Option<f64>,
    /// How many units were measured.
    pub units: usize,
    /// What a unit is.
    pub unit: &'static str,
    /// A verdict that goes before, with its reason.
    pub proviso: Option<(Verdict, String)>,
}

/// That a number keeps to a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The probability of such numbers if the limit were just broken.
    pub within: f64,
    /// The probability of such numbers if the limit were just kept.
    pub beyond: f64,
    /// How many units were measured.
    pub units: usize,
    /// How many would probably decide; nothing if none would.
    pub needed: Option<usize>,
    /// What a unit is.
    pub unit: &'static str,
}
