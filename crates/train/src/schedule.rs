//! The learning rate as a function of the step.
//!
//! Steps are counted from 1, and the rate of step `n` is what transformers'
//! `get_*_schedule_with_warmup` give for `n - 1`: what has been done before a
//! step decides its rate. So:
//!
//! - With `warmup_steps: w`, step `n` of the first `w` has `(n - 1) / w` of the
//!   highest rate. The first step of a warmup has rate 0, which still fills the
//!   optimizer's means; step `w + 1` is the first with the highest rate.
//! - Without a warmup the first step has the highest rate.
//! - The last step of all is one short of the lowest rate, which is reached
//!   behind the end. A run that is given more steps later goes on from there
//!   with the lowest.
//!
//! Unlike transformers' `wsd`, every warmup rises from zero, as the
//! configuration says, not from the lowest rate.
//!
//! Nothing is remembered between steps: a run that is resumed has the rates it
//! would have had.

use std::f64::consts::PI;

use weightloom_errors::Hint;

use crate::config::{Decay, ScheduleConfig, ScheduleKind};

/// Why there is no such schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ScheduleError {
    /// A lowest rate that is no share of the highest.
    #[error("`train.schedule.min_ratio` is {found}")]
    MinRatio { found: String },
    /// Phases that are together longer than the run.
    #[error("{warmup} steps of warmup and {decay} of decay do not fit in {total} steps")]
    NoRoom { warmup: u64, decay: u64, total: u64 },
}

impl Hint for ScheduleError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::MinRatio { .. } => "set `train.schedule.min_ratio` to a number from 0 to 1".to_owned(),
            Self::NoRoom { warmup, total, .. } => match total.saturating_sub(*warmup) {
                0 => format!("set `train.schedule.warmup_steps` below {total}"),
                left => format!("set `train.schedule.decay_steps` to at most {left}"),
            },
        })
    }
}

/// The learning rate of every step.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRate {
    highest: f64,
    lowest_ratio: f64,
    warmup: u64,
    /// Steps before it falls.
    stable: u64,
    /// Steps in which it falls.
    falling: u64,
    shape: Shape,
}

/// How it falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Flat,
    Linear,
    Cosine,
    Sqrt,
}

impl LearningRate {
    /// The rates of a run of `total` steps whose highest is `highest`.
    pub fn new(highest: f64, config: &ScheduleConfig, total: u64) -> Result<Self, ScheduleError> {
        if !(0.0..=1.0).contains(&config.min_ratio) {
            return Err(ScheduleError::MinRatio { found: config.min_ratio.to_string() });
        }
        let warmup = config.warmup_steps;
        let after = total.saturating_sub(warmup);
        let (stable, shape) = match config.kind {
            ScheduleKind::Constant => (after, Shape::Flat),
            ScheduleKind::Linear => (0, Shape::Linear),
            ScheduleKind::Cosine => (0, Shape::Cosine),
            ScheduleKind::Wsd => {
                let decay = config.decay_steps.unwrap_or((total / 5).min(after));
                let stable = after
                    .checked_sub(decay)
                    .filter(|_| warmup <= total)
                    .ok_or(ScheduleError::NoRoom { warmup, decay, total })?;
                (stable, config.decay.into())
            }
        };
        let falling = after - stable;
        Ok(Self { highest, lowest_ratio: config.min_ratio, warmup, stable, falling, shape })
    }

    /// The rate of a step, counted from 1.
    pub fn at(&self, step: u64) -> f64 {
        self.highest * self.ratio(step.saturating_sub(1))
    }

    /// The share of the highest rate after so many steps.
    fn ratio(&self, done: u64) -> f64 {
        if done < self.warmup {
            return done as f64 / self.warmup as f64;
        }
        if self.shape == Shape::Flat {
            return 1.0;
        }
        let Some(fallen) = (done - self.warmup).checked_sub(self.stable) else { return 1.0 };
        // A fall of no steps is a fall at once.
        if fallen >= self.falling {
            return self.lowest_ratio;
        }
        let progress = fallen as f64 / self.falling as f64;
        let left = match self.shape {
            Shape::Flat => 1.0,
            Shape::Linear => 1.0 - progress,
            Shape::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
            Shape::Sqrt => 1.0 - progress.sqrt(),
        };
        left * (1.0 - self.lowest_ratio) + self.lowest_ratio
    }
}

impl From<Decay> for Shape {
    fn from(decay: Decay) -> Self {
        match decay {
            Decay::Linear => Self::Linear,
            Decay::Cosine => Self::Cosine,
            Decay::Sqrt => Self::Sqrt,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;

    use super::*;

    const KINDS: [ScheduleKind; 4] =
        [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd, ScheduleKind::Constant];
    const DECAYS: [Decay; 3] = [Decay::Linear, Decay::Cosine, Decay::Sqrt];

    fn plain(kind: ScheduleKind) -> ScheduleConfig {
        ScheduleConfig { kind, ..ScheduleConfig::default() }
    }

    #[test]
    fn the_first_steps_are_as_written_down() {
        for kind in KINDS {
            assert_eq!(LearningRate::new(0.5, &plain(kind), 10).unwrap().at(1), 0.5);
            let warm = ScheduleConfig { warmup_steps: 4, ..plain(kind) };
            let rate = LearningRate::new(2.0, &warm, 100).unwrap();
            assert_eq!([1, 2, 3, 4, 5].map(|step| rate.at(step)), [0.0, 0.5, 1.0, 1.5, 2.0]);
        }
    }

    #[test]
    fn a_share_that_is_none_is_an_error() {
        for min_ratio in [-0.1, 1.1, f64::NAN] {
            let config = ScheduleConfig { min_ratio, ..ScheduleConfig::default() };
            let error = LearningRate::new(1.0, &config, 10).unwrap_err();
            assert_eq!(error.to_string(), format!("`train.schedule.min_ratio` is {min_ratio}"));
            assert_eq!(error.hint().unwrap(), "set `train.schedule.min_ratio` to a number from 0 to 1");
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
        assert_eq!(error.to_string(), "3 steps of warmup and 8 of decay do not fit in 10 steps");
        assert_eq!(error.hint().unwrap(), "set `train.schedule.decay_steps` to at most 7");
        let error = LearningRate::new(1.0, &config(30, None), 10).unwrap_err();
        assert_eq!(error.hint().unwrap(), "set `train.schedule.warmup_steps` below 10");
        assert!(LearningRate::new(1.0, &config(3, Some(7)), 10).is_ok());
        // A fifth of all, or less where a warmup leaves less.
        assert!(LearningRate::new(1.0, &config(9, None), 10).is_ok());
    }

    #[test]
    fn steps_far_away_do_not_overflow() {
        for kind in KINDS {
            let rate = LearningRate::new(1.0, &plain(kind), u64::MAX).unwrap();
            assert!(rate.at(u64::MAX) >= 0.0 && rate.at(0) == 1.0);
            let empty = LearningRate::new(1.0, &plain(kind), 0).unwrap();
            assert!((0.0..=1.0).contains(&empty.at(1)));
        }
    }

    proptest! {
        #[test]
        fn rates_rise_then_fall_within_bounds_without_leaps(
            kind in 0..4usize,
            decay in 0..3usize,
            total in 1..200u64,
            warmup_share in 0.0..1.0f64,
            decay_share in 0.0..1.0f64,
            min_ratio in 0.0..1.0f64,
        ) {
            let (kind, decay) = (KINDS[kind], DECAYS[decay]);
            let warmup = (total as f64 * warmup_share) as u64;
            let decay_steps = ((total - warmup) as f64 * decay_share) as u64;
            let config = ScheduleConfig {
                kind, warmup_steps: warmup, min_ratio, decay_steps: Some(decay_steps), decay,
            };
            let rate = LearningRate::new(1.0, &config, total).unwrap();
            let falling = if kind == ScheduleKind::Wsd { decay_steps } else { total - warmup };
            // The steepest that each shape is within one step.
            let steepest = 1.0 / falling.max(1) as f64;
            let steepest = match kind {
                ScheduleKind::Constant => 0.0,
                ScheduleKind::Wsd if decay == Decay::Sqrt => steepest.sqrt(),
                _ => steepest * PI / 2.0,
            };
            for step in 1..total + 3 {
                let (now, next) = (rate.at(step), rate.at(step + 1));
                prop_assert!((0.0..=1.0).contains(&now));
                if step <= warmup {
                    prop_assert!(next > now && next - now <= 1.0 / warmup as f64 + 1e-12);
                } else if step <= total {
                    prop_assert!(now >= min_ratio - 1e-15, "{}", now);
                    prop_assert!(next <= now && now - next <= steepest + 1e-12, "{} {}", now, next);
                }
            }
            // The highest once the warmup is over, the lowest behind the end.
            prop_assert!(warmup == total || rate.at(warmup + 1) == 1.0 || falling == 0);
            let last = if kind == ScheduleKind::Constant { 1.0 } else { min_ratio };
            prop_assert_eq!(rate.at(total + 1), last);
            prop_assert_eq!(rate.at(total + 1000), last);
        }

        #[test]
        fn the_highest_rate_is_a_factor(highest in 0.0..10.0f64, step in 0..60u64) {
            let config = ScheduleConfig { warmup_steps: 5, ..ScheduleConfig::default() };
            let one = LearningRate::new(1.0, &config, 50).unwrap();
            let many = LearningRate::new(highest, &config, 50).unwrap();
            prop_assert_eq!(many.at(step), highest * one.at(step));
        }
    }
}
