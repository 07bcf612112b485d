//! Throughput and remaining time of a run.
//!
//! Throughput is the exponentially weighted sum of tokens divided by that of
//! seconds. Unlike a mean of each step's throughput, a slow step counts for as
//! long as it took.

/// Decay of a step's weight per step. The last ten steps have about two thirds
/// of all weight.
const DECAY: f64 = 0.9;

/// Measures throughput.
#[derive(Clone, Debug, PartialEq)]
pub struct Meter {
    work: Work,
    tokens: f64,
    seconds: f64,
    steps: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    flops_per_token: Option<f64>,
    peak_flops: Option<f64>,
}

/// The throughput after a step.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub tokens_per_second: f64,
    /// Model flops utilization, if the flops and the peak are known.
    pub mfu: Option<f64>,
    pub seconds_per_step: f64,
}

impl Meter {
    /// A meter for a model with these flops per token, forward and backward, on
    /// ranks with this combined peak per second.
    pub fn new(flops_per_token: Option<f64>, peak_flops: Option<f64>) -> Self {
        let work = Work { flops_per_token, peak_flops };
        Self { work, tokens: 0.0, seconds: 0.0, steps: 0.0 }
    }

    /// Adds a step of all ranks and returns the throughput.
    pub fn step(&mut self, tokens: u64, seconds: f64) -> Reading {
        // A clock may have been set back.
        let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
        self.tokens = self.tokens * DECAY + tokens as f64;
        self.seconds = self.seconds * DECAY + seconds;
        self.steps = self.steps * DECAY + 1.0;
        let tokens_per_second = if self.seconds > 0.0 { self.tokens / self.seconds } else { 0.0 };
        let Work { flops_per_token, peak_flops } = self.work;
        let mfu = flops_per_token
            .zip(peak_flops.filter(|peak| *peak > 0.0))
            .map(|(flops, peak)| tokens_per_second * flops / peak);
        Reading { tokens_per_second, mfu, seconds_per_step: self.seconds / self.steps }
    }

    /// Estimated seconds for the remaining steps; `None` before the first
    /// step.
    pub fn seconds_left(&self, steps: u64) -> Option<f64> {
        (self.steps > 0.0).then(|| self.seconds / self.steps * steps as f64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn constant_steps_give_constant_throughput() {
        let mut meter = Meter::new(Some(6e9), Some(1e13));
        assert_eq!(meter.seconds_left(10), None);
        for _ in 0..50 {
            let reading = meter.step(1000, 0.5);
            assert!((reading.tokens_per_second - 2000.0).abs() < 1e-9);
            assert!((reading.seconds_per_step - 0.5).abs() < 1e-12);
            assert!((reading.mfu.unwrap() - 1.2).abs() < 1e-12);
            assert!((meter.seconds_left(10).unwrap() - 5.0).abs() < 1e-12);
        }
    }

    #[test]
    fn mfu_needs_flops_and_peak() {
        for (flops, peak) in [(None, Some(1e12)), (Some(1e9), None), (None, None), (Some(1e9), Some(0.0))] {
            assert_eq!(Meter::new(flops, peak).step(10, 1.0).mfu, None);
        }
    }

    #[test]
    fn old_steps_lose_weight() {
        let mut meter = Meter::new(None, None);
        meter.step(1, 1000.0);
        let after: Vec<f64> = (0..100).map(|_| meter.step(1000, 1.0).tokens_per_second).collect();
        assert!(after[0] < 2.0 && after[99] > 950.0, "{after:?}");
        assert!(after.windows(2).all(|pair| pair[0] < pair[1]));
    }

    proptest! {
        #[test]
        fn throughput_is_between_the_slowest_and_the_fastest_step(
            steps in prop::collection::vec((1..10_000_u64, 1e-3..10.0f64), 1..30),
        ) {
            let mut meter = Meter::new(None, None);
            let mut last = 0.0;
            for (tokens, seconds) in &steps {
                last = meter.step(*tokens, *seconds).tokens_per_second;
            }
            let rates = steps.iter().map(|(tokens, seconds)| *tokens as f64 / seconds);
            prop_assert!(last <= rates.clone().fold(0.0, f64::max) * (1.0 + 1e-12));
            prop_assert!(last >= rates.fold(f64::INFINITY, f64::min) * (1.0 - 1e-12));
        }

        #[test]
        fn any_clock_value_is_handled(seconds in prop::num::f64::ANY) {
            let mut meter = Meter::new(Some(1.0), Some(1.0));
            let reading = meter.step(10, seconds);
            prop_assert!(reading.tokens_per_second >= 0.0 && reading.seconds_per_step >= 0.0);
            prop_assert!(!reading.tokens_per_second.is_nan());
        }
    }
}
