//! Learning-rate schedules, and their section of the config.
//!
//! Steps count from 1. The rate of step `n` is what transformers'
//! `get_*_schedule_with_warmup` return for `n - 1`, the number of steps done
//! before it:
//!
//! - With `warmup_steps: w`, step `n` of the first `w` uses `(n - 1) / w` of the
//!   peak rate. The first step has rate 0 and still updates the optimizer's
//!   states; step `w + 1` is the first at the peak.
//! - Without warmup the first step has the peak rate.
//! - The last step is one short of the lowest rate. A run that is extended
//!   later continues with the lowest rate.
//!
//! Unlike transformers' `wsd`, every warmup starts at zero, not at the lowest
//! rate.
//!
//! A rate depends only on the step, so a resumed run has the rates of an
//! uninterrupted one.
//!
//! A schedule of your own crate implements [`ScheduleFactory`] and is added to
//! [`Schedules`]; warmup comes before it, as before the built-in ones.

mod decay;
mod registry;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weightloom_errors::Hint;

pub use registry::{LearningRateSchedule, ScheduleFactory, Schedules};

use crate::extensions::{UnknownName, caught};

/// Learning-rate schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Shape of the schedule after warmup.
    pub kind: ScheduleKind,
    /// Steps of linear warmup from zero.
    pub warmup_steps: u64,
    /// Final learning rate as a fraction of the peak.
    pub min_lr_ratio: f64,
    /// Steps of decay at the end, for `wsd`. Defaults to a fifth of all steps.
    pub decay_steps: Option<u64>,
    /// Shape of the decay, for `wsd`.
    pub decay_type: DecayType,
    /// Power of the remaining share of steps, for `polynomial`.
    pub power: f64,
    /// Number of half cosine waves, for `cosine_with_restarts`.
    pub cycles: u64,
    /// Steps after which the rate is a factor of √2 below the peak, for `inverse_sqrt`.
    /// Defaults to `warmup_steps`, or 10,000 without warmup.
    pub timescale: Option<u64>,
    /// Settings of a schedule that is not built in.
    pub options: Option<Map<String, Value>>,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::default(),
            warmup_steps: 0,
            min_lr_ratio: 0.0,
            decay_steps: None,
            decay_type: DecayType::default(),
            power: 1.0,
            cycles: 1,
            timescale: None,
            options: None,
        }
    }
}

/// Shape of the schedule after warmup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = crate::extensions::one_of)]
pub enum ScheduleKind {
    /// Decay along half a cosine wave.
    #[default]
    Cosine,
    /// Decay linearly.
    Linear,
    /// Warmup, stable, decay: constant until the last `decay_steps`.
    Wsd,
    /// No decay.
    Constant,
    /// Decay with the inverse square root of the step, without an end.
    InverseSqrt,
    /// Decay with a `power` of the remaining share of steps.
    Polynomial,
    /// Decay along `cycles` half cosine waves, each from the peak.
    CosineWithRestarts,
    /// One that the program has registered with [`Schedules`].
    #[serde(untagged)]
    #[schemars(skip)]
    Registered(String),
}

impl ScheduleKind {
    /// The name in the config.
    pub fn name(&self) -> &str {
        match self {
            Self::Cosine => "cosine",
            Self::Linear => "linear",
            Self::Wsd => "wsd",
            Self::Constant => "constant",
            Self::InverseSqrt => "inverse_sqrt",
            Self::Polynomial => "polynomial",
            Self::CosineWithRestarts => "cosine_with_restarts",
            Self::Registered(name) => name,
        }
    }
}

/// Shape of the decay, for `wsd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecayType {
    /// Linear.
    #[default]
    Linear,
    /// Half a cosine wave.
    Cosine,
    /// One minus the square root of the progress.
    Sqrt,
}

/// A schedule that does not fit the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ScheduleError {
    #[error("invalid `train.schedule.min_lr_ratio`: {found} is not between 0 and 1")]
    MinRatio { found: String },
    #[error("invalid `train.schedule.{key}`: {found} is not {wanted}")]
    Number { key: &'static str, found: String, wanted: &'static str },
    #[error("cannot fit {warmup} warmup steps and {decay} decay steps into {total} steps")]
    NoRoom { warmup: u64, decay: u64, total: u64 },
    #[error("`train.schedule.kind`: {0}")]
    Unknown(#[from] UnknownName),
    #[error("invalid `train.schedule.options` of `{schedule}`: {problem}")]
    Options { schedule: String, problem: String },
    #[error("cannot use the schedule `{schedule}`: {problem}")]
    Unusable { schedule: String, problem: String },
    #[error(
        "the schedule `{schedule}` returns {ratio} for step {step}, which is not a fraction of the peak rate"
    )]
    Ratio { schedule: String, step: u64, ratio: String },
}

impl Hint for ScheduleError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::MinRatio { .. } => "set `train.schedule.min_lr_ratio` to a number from 0 to 1".to_owned(),
            Self::Number { key, wanted, .. } => format!("set `train.schedule.{key}` to {wanted}"),
            Self::NoRoom { warmup, total, .. } => match total.saturating_sub(*warmup) {
                0 => format!("set `train.schedule.warmup_steps` below {total}"),
                left => format!("set `train.schedule.decay_steps` to at most {left}"),
            },
            Self::Unknown(error) => return error.hint(),
            Self::Options { .. } | Self::Unusable { .. } => return None,
            Self::Ratio { .. } => "return a finite number of at least 0 for every step".to_owned(),
        })
    }
}

/// The learning rate as a function of the step: linear warmup, then a
/// [`LearningRateSchedule`].
#[derive(Clone, Debug)]
pub struct LearningRate {
    peak: f64,
    warmup: u64,
    name: String,
    schedule: Arc<dyn LearningRateSchedule>,
}

impl LearningRate {
    /// The built-in schedule of a run of `total` steps with this peak rate.
    pub fn new(peak: f64, config: &ScheduleConfig, total: u64) -> Result<Self, ScheduleError> {
        Schedules::standard().build(peak, config, total)
    }

    /// The rate of a step, counting from 1.
    pub fn at(&self, step: u64) -> f64 {
        self.peak * self.ratio(step.saturating_sub(1))
    }

    /// The rate of a step, if the schedule returns a rate that can be used.
    pub fn checked_at(&self, step: u64) -> Result<f64, ScheduleError> {
        let schedule = || self.name.clone();
        let ratio = caught(|| self.ratio(step.saturating_sub(1)))
            .map_err(|panic| ScheduleError::Unusable { schedule: schedule(), problem: panic.to_string() })?;
        let rate = self.peak * ratio;
        if rate.is_finite() && ratio >= 0.0 {
            return Ok(rate);
        }
        Err(ScheduleError::Ratio { schedule: schedule(), step, ratio: ratio.to_string() })
    }

    /// The fraction of the peak rate after `done` steps.
    fn ratio(&self, done: u64) -> f64 {
        match done.checked_sub(self.warmup) {
            None => done as f64 / self.warmup as f64,
            Some(done) => self.schedule.ratio(done),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::f64::consts::PI;

    use proptest::prelude::*;

    use super::*;

    const KINDS: [ScheduleKind; 4] =
        [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd, ScheduleKind::Constant];
    const DECAYS: [DecayType; 3] = [DecayType::Linear, DecayType::Cosine, DecayType::Sqrt];

    fn plain(kind: ScheduleKind) -> ScheduleConfig {
        ScheduleConfig { kind, ..ScheduleConfig::default() }
    }

    #[test]
    fn warmup_starts_at_zero_and_ends_at_the_peak() {
        for kind in KINDS {
            assert_eq!(LearningRate::new(0.5, &plain(kind.clone()), 10).unwrap().at(1), 0.5);
            let warm = ScheduleConfig { warmup_steps: 4, ..plain(kind) };
            let rate = LearningRate::new(2.0, &warm, 100).unwrap();
            assert_eq!([1, 2, 3, 4, 5].map(|step| rate.at(step)), [0.0, 0.5, 1.0, 1.5, 2.0]);
        }
    }

    #[test]
    fn min_lr_ratio_must_be_a_fraction() {
        for min_lr_ratio in [-0.1, 1.1, f64::NAN] {
            let config = ScheduleConfig { min_lr_ratio, ..ScheduleConfig::default() };
            let error = LearningRate::new(1.0, &config, 10).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("invalid `train.schedule.min_lr_ratio`: {min_lr_ratio} is not between 0 and 1")
            );
            assert_eq!(error.hint().unwrap(), "set `train.schedule.min_lr_ratio` to a number from 0 to 1");
        }
    }

    #[test]
    fn phases_that_do_not_fit_are_an_error() {
        let config = |warmup_steps, decay_steps| ScheduleConfig {
            warmup_steps,
            decay_steps,
            ..plain(ScheduleKind::Wsd)
        };
        let error = LearningRate::new(1.0, &config(3, Some(8)), 10).unwrap_err();
        assert_eq!(error, ScheduleError::NoRoom { warmup: 3, decay: 8, total: 10 });
        assert_eq!(error.to_string(), "cannot fit 3 warmup steps and 8 decay steps into 10 steps");
        assert_eq!(error.hint().unwrap(), "set `train.schedule.decay_steps` to at most 7");
        let error = LearningRate::new(1.0, &config(30, None), 10).unwrap_err();
        assert_eq!(error.hint().unwrap(), "set `train.schedule.warmup_steps` below 10");
        assert!(LearningRate::new(1.0, &config(3, Some(7)), 10).is_ok());
        // The default is a fifth of all steps, or fewer if warmup leaves fewer.
        assert!(LearningRate::new(1.0, &config(9, None), 10).is_ok());
    }

    #[test]
    fn steps_far_away_do_not_overflow() {
        for kind in KINDS {
            let rate = LearningRate::new(1.0, &plain(kind.clone()), u64::MAX).unwrap();
            assert!(rate.at(u64::MAX) >= 0.0 && rate.at(0) == 1.0);
            let empty = LearningRate::new(1.0, &plain(kind), 0).unwrap();
            assert!((0.0..=1.0).contains(&empty.at(1)));
        }
    }

    #[test]
    fn rates_of_a_restarted_wave_jump_to_the_peak() {
        let config = ScheduleConfig { cycles: 2, ..plain(ScheduleKind::CosineWithRestarts) };
        let rate = LearningRate::new(1.0, &config, 8).unwrap();
        assert_eq!(
            [1, 3, 5, 9, 100].map(|step| (rate.at(step) * 1e6).round() / 1e6),
            [1.0, 0.5, 1.0, 0.0, 0.0]
        );
    }

    #[test]
    fn an_inverse_root_has_no_end_but_a_lowest_rate() {
        let config =
            ScheduleConfig { timescale: Some(4), min_lr_ratio: 0.2, ..plain(ScheduleKind::InverseSqrt) };
        let rate = LearningRate::new(1.0, &config, 10).unwrap();
        assert_eq!([1, 13, 1000].map(|step| rate.at(step)), [1.0, 0.5, 0.2]);
    }

    #[test]
    fn shapes_of_new_schedules_are_checked() {
        for (config, message) in [
            (
                ScheduleConfig { power: 0.0, ..plain(ScheduleKind::Polynomial) },
                "power`: 0 is not a positive number",
            ),
            (ScheduleConfig { cycles: 0, ..plain(ScheduleKind::Cosine) }, "cycles`: 0 is not 1 or more"),
            (
                ScheduleConfig { timescale: Some(0), ..plain(ScheduleKind::InverseSqrt) },
                "timescale`: 0 is not 1 or more",
            ),
        ] {
            let error = LearningRate::new(1.0, &config, 10).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid `train.schedule.{message}"));
            assert!(error.hint().unwrap().starts_with("set `train.schedule."));
        }
    }

    proptest! {
        #[test]
        fn rates_rise_then_decay_within_bounds_without_jumps(
            kind in 0..4usize,
            decay in 0..3usize,
            total in 1..200u64,
            warmup_share in 0.0..1.0f64,
            decay_share in 0.0..1.0f64,
            min_lr_ratio in 0.0..1.0f64,
        ) {
            let (kind, decay) = (KINDS[kind].clone(), DECAYS[decay]);
            let warmup = (total as f64 * warmup_share) as u64;
            let decay_steps = ((total - warmup) as f64 * decay_share) as u64;
            let config = ScheduleConfig {
                kind: kind.clone(), warmup_steps: warmup, min_lr_ratio, decay_steps: Some(decay_steps),
                decay_type: decay, ..ScheduleConfig::default()
            };
            let rate = LearningRate::new(1.0, &config, total).unwrap();
            let decaying = if kind == ScheduleKind::Wsd { decay_steps } else { total - warmup };
            // The largest change of each shape within one step.
            let steepest = 1.0 / decaying.max(1) as f64;
            let steepest = match kind {
                ScheduleKind::Constant => 0.0,
                ScheduleKind::Wsd if decay == DecayType::Sqrt => steepest.sqrt(),
                _ => steepest * PI / 2.0,
            };
            for step in 1..total + 3 {
                let (now, next) = (rate.at(step), rate.at(step + 1));
                prop_assert!((0.0..=1.0).contains(&now));
                if step <= warmup {
                    prop_assert!(next > now && next - now <= 1.0 / warmup as f64 + 1e-12);
                } else if step <= total {
                    prop_assert!(now >= min_lr_ratio - 1e-15, "{}", now);
                    prop_assert!(next <= now && now - next <= steepest + 1e-12, "{} {}", now, next);
                }
            }
            // The peak once warmup is over, the lowest rate after the end.
            prop_assert!(warmup == total || rate.at(warmup + 1) == 1.0 || decaying == 0);
            let last = if kind == ScheduleKind::Constant { 1.0 } else { min_lr_ratio };
            prop_assert_eq!(rate.at(total + 1), last);
            prop_assert_eq!(rate.at(total + 1000), last);
        }

        #[test]
        fn rates_are_proportional_to_the_peak(peak in 0.0..10.0f64, step in 0..60u64) {
            let config = ScheduleConfig { warmup_steps: 5, ..ScheduleConfig::default() };
            let one = LearningRate::new(1.0, &config, 50).unwrap();
            let many = LearningRate::new(peak, &config, 50).unwrap();
            prop_assert_eq!(many.at(step), peak * one.at(step));
        }
    }
}
