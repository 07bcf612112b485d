//! The built-in schedules: constant, then a decay.

use std::f64::consts::PI;

use super::{DecayType, LearningRateSchedule, ScheduleConfig, ScheduleError, ScheduleFactory, ScheduleKind};
use crate::extensions::NoOptions;

/// A constant rate, then a decay to the lowest one.
#[derive(Clone, Debug, PartialEq)]
struct Decay {
    min_lr_ratio: f64,
    /// Steps at the peak rate.
    stable: u64,
    decay: u64,
    shape: Shape,
}

/// Shape of the decay.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Flat,
    Linear,
    Cosine,
    Sqrt,
    /// A power of what is left.
    Polynomial(f64),
    /// So many half waves.
    Restarts(f64),
}

impl From<DecayType> for Shape {
    fn from(decay: DecayType) -> Self {
        match decay {
            DecayType::Linear => Self::Linear,
            DecayType::Cosine => Self::Cosine,
            DecayType::Sqrt => Self::Sqrt,
        }
    }
}

impl LearningRateSchedule for Decay {
    fn ratio(&self, done: u64) -> f64 {
        if self.shape == Shape::Flat {
            return 1.0;
        }
        let Some(decayed) = done.checked_sub(self.stable) else { return 1.0 };
        // A decay of zero steps ends at once.
        if decayed >= self.decay {
            return self.min_lr_ratio;
        }
        let progress = decayed as f64 / self.decay as f64;
        let left = match self.shape {
            Shape::Flat => 1.0,
            Shape::Linear => 1.0 - progress,
            Shape::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
            Shape::Sqrt => 1.0 - progress.sqrt(),
            Shape::Polynomial(power) => (1.0 - progress).powf(power),
            Shape::Restarts(cycles) => 0.5 * (1.0 + (PI * ((cycles * progress) % 1.0)).cos()),
        };
        left * (1.0 - self.min_lr_ratio) + self.min_lr_ratio
    }
}

/// Decay with the inverse square root of the step.
#[derive(Clone, Debug, PartialEq)]
struct InverseSqrt {
    min_lr_ratio: f64,
    timescale: f64,
}

impl LearningRateSchedule for InverseSqrt {
    fn ratio(&self, done: u64) -> f64 {
        let ratio = 1.0 / ((done as f64 + self.timescale) / self.timescale).sqrt();
        ratio.max(self.min_lr_ratio)
    }
}

/// The time scale of transformers without warmup.
const TIMESCALE: u64 = 10_000;

/// A built-in schedule.
#[derive(Debug)]
pub(super) struct BuiltIn {
    pub(super) kind: ScheduleKind,
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
}

impl ScheduleFactory for BuiltIn {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn build(
        &self,
        config: &ScheduleConfig,
        _: NoOptions,
        total: u64,
    ) -> Result<Box<dyn LearningRateSchedule>, ScheduleError> {
        let warmup = config.warmup_steps;
        let after = total.saturating_sub(warmup);
        let (stable, shape) = match &self.kind {
            ScheduleKind::Constant | ScheduleKind::Registered(_) => (after, Shape::Flat),
            ScheduleKind::Linear => (0, Shape::Linear),
            ScheduleKind::Cosine => (0, Shape::Cosine),
            ScheduleKind::Polynomial => (0, Shape::Polynomial(config.power)),
            ScheduleKind::CosineWithRestarts => (0, Shape::Restarts(config.cycles as f64)),
            ScheduleKind::InverseSqrt => {
                let timescale = config.timescale.unwrap_or(if warmup > 0 { warmup } else { TIMESCALE });
                let min_lr_ratio = config.min_lr_ratio;
                return Ok(Box::new(InverseSqrt { min_lr_ratio, timescale: timescale as f64 }));
            }
            ScheduleKind::Wsd => {
                let decay = config.decay_steps.unwrap_or((total / 5).min(after));
                let stable = after
                    .checked_sub(decay)
                    .filter(|_| warmup <= total)
                    .ok_or(ScheduleError::NoRoom { warmup, decay, total })?;
                (stable, config.decay_type.into())
            }
        };
        let min_lr_ratio = config.min_lr_ratio;
        Ok(Box::new(Decay { min_lr_ratio, stable, decay: after - stable, shape }))
    }
}
