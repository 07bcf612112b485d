//! How fast a run is, and when it will be done.
//!
//! Speed is the tokens of the last steps over their seconds, both weighted by
//! how long ago they were. That is not the mean of each step's speed: a step
//! that takes long counts for as long as it took.

/// How much of the weight of a step is left one step later. Ten steps have
/// about two thirds of all weight.
const KEPT: f64 = 0.9;

/// Measures speed.
#[derive(Clone, Debug, PartialEq)]
pub struct Meter {
    work: Work,
    tokens: f64,
    seconds: f64,
    steps: f64,
}

/// What a token costs, and what there is to compute it with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    flops_per_token: Option<f64>,
    peak_flops: Option<f64>,
}

/// What a meter shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Tokens in a second.
    pub tokens_per_second: f64,
    /// The share of the machine's arithmetic that the model's takes, if both
    /// are known.
    pub mfu: Option<f64>,
    /// Seconds that a step takes.
    pub seconds_per_step: f64,
}

impl Meter {
    /// A meter for a model that computes so much for a token, forward and
    /// backward together, on ranks that together can compute so much in a
    /// second; either may be unknown.
    pub fn new(flops_per_token: Option<f64>, peak_flops: Option<f64>) -> Self {
        let work = Work { flops_per_token, peak_flops };
        Self { work, tokens: 0.0, seconds: 0.0, steps: 0.0 }
    }

    /// Adds a step of all ranks together and shows what is known then.
    pub fn step(&mut self, tokens: u64, seconds: f64) -> Reading {
        // A clock that was set back says nothing.
        let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
        self.tokens = self.tokens * KEPT + tokens as f64;
        self.seconds = self.seconds * KEPT + seconds;
        self.steps = self.steps * KEPT + 1.0;
        let tokens_per_second = if self.seconds > 0.0 { self.tokens / self.seconds } else { 0.0 };
        let Work { flops_per_token, peak_flops } = self.work;
        let mfu = flops_per_token
            .zip(peak_flops.filter(|peak| *peak > 0.0))
            .map(|(flops, peak)| tokens_per_second * flops / peak);
        Reading { tokens_per_second, mfu, seconds_per_step: self.seconds / self.steps }
    }

    /// Seconds until so many further steps are done, at the speed of the last
    /// ones; none before the first.
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
    fn an_even_run_is_as_fast_as_each_of_its_steps() {
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
    fn what_is_unknown_gives_no_share() {
        for (flops, peak) in [(None, Some(1e12)), (Some(1e9), None), (None, None), (Some(1e9), Some(0.0))] {
            assert_eq!(Meter::new(flops, peak).step(10, 1.0).mfu, None);
        }
    }

    #[test]
    fn old_steps_are_forgotten() {
        let mut meter = Meter::new(None, None);
        meter.step(1, 1000.0);
        let after: Vec<f64> = (0..100).map(|_| meter.step(1000, 1.0).tokens_per_second).collect();
        assert!(after[0] < 2.0 && after[99] > 950.0, "{after:?}");
        assert!(after.windows(2).all(|pair| pair[0] < pair[1]));
    }

    proptest! {
        #[test]
        fn speed_lies_between_the_slowest_and_the_fastest_step(
            steps in prop::collection::vec((1..10_000_u64, 1e-3..10.0f64), 1..30),
        ) {
            let mut meter = Meter::new(None, None);
            let mut last = 0.0;
            for (tokens, seconds) in &steps {
                last = meter.step(*tokens, *seconds).tokens_per_second;
            }
            let speeds = steps.iter().map(|(tokens, seconds)| *tokens as f64 / seconds);
            prop_assert!(last <= speeds.clone().fold(0.0, f64::max) * (1.0 + 1e-12));
            prop_assert!(last >= speeds.fold(f64::INFINITY, f64::min) * (1.0 - 1e-12));
        }

        #[test]
        fn clocks_that_lie_do_no_harm(seconds in prop::num::f64::ANY) {
            let mut meter = Meter::new(Some(1.0), Some(1.0));
            let reading = meter.step(10, seconds);
            prop_assert!(reading.tokens_per_second >= 0.0 && reading.seconds_per_step >= 0.0);
            prop_assert!(!reading.tokens_per_second.is_nan());
        }
    }
}
