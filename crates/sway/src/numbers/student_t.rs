//! Student's t: how far the mean of a few numbers may be from the truth.

use std::f64::consts::{FRAC_2_PI, PI};

use super::summation::mean;
use super::variance::population_variance;

/// The probability that Student's t with some degrees of freedom exceeds a
/// number. Finite sums for whole degrees of freedom (Abramowitz and Stegun,
/// 26.7.3 and 26.7.4).
pub fn upper_tail(t: f64, freedom: usize) -> f64 {
    if t.is_nan() || freedom == 0 {
        return f64::NAN;
    }
    let angle = (t.abs() / (freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let squared = cosine * cosine;
    let within = if freedom % 2 == 1 {
        let mut term = cosine;
        let mut sum = if freedom > 1 { cosine } else { 0.0 };
        for step in 1..freedom.saturating_sub(1) / 2 {
            term *= squared * (2 * step) as f64 / (2 * step + 1) as f64;
            sum += term;
        }
        FRAC_2_PI * (angle + sine * sum)
    } else {
        let mut term = 1.0;
        let mut sum = 1.0;
        for step in 1..freedom / 2 {
            term *= squared * (2 * step - 1) as f64 / (2 * step) as f64;
            sum += term;
        }
        sine * sum
    };
    debug_assert!(angle <= PI / 2.0);
    let tail = (0.5 * (1.0 - within)).clamp(0.0, 0.5);
    if t >= 0.0 { tail } else { 1.0 - tail }
}

/// The number that Student's t exceeds with a probability below one half.
pub fn quantile(tail: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while upper_tail(high, freedom) > tail && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if upper_tail(middle, freedom) > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The mean of some numbers and its standard error; nothing for fewer than two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TTest {
    /// The mean.
    pub mean: f64,
    /// The deviation of single numbers, for the whole population.
    pub deviation: f64,
    /// The standard error of the mean.
    pub error: f64,
    /// How many numbers.
    pub count: usize,
}

impl TTest {
    /// Of some numbers.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count < 2 || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let deviation = (population_variance(values)? * count as f64 / (count - 1) as f64).sqrt();
        Some(Self { mean: mean(values)?, deviation, error: deviation / (count as f64).sqrt(), count })
    }

    /// The probability of so large a mean, or a larger one, if the true one
    /// were `limit`.
    pub fn above(&self, limit: f64) -> f64 {
        if self.error == 0.0 {
            return if self.mean > limit { 0.0 } else { 1.0 };
        }
        upper_tail((self.mean - limit) / self.error, self.count - 1)
    }

    /// The same for so small a mean.
    pub fn below(&self, limit: f64) -> f64 {
        if self.error == 0.0 {
            return if self.mean < limit { 0.0 } else { 1.0 };
        }
        upper_tail((limit - self.mean) / self.error, self.count - 1)
    }

    /// Where the true mean lies with 95 % confidence.
    pub fn interval(&self) -> [f64; 2] {
        let reach = quantile(0.025, self.count - 1) * self.error;
        [self.mean - reach, self.mean + reach]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tails_are_those_of_tables() {
        for (freedom, tail, t) in [
            (1, 0.05, 6.313751515),
            (2, 0.05, 2.91998558),
            (3, 0.025, 3.182446305),
            (5, 0.05, 2.015048373),
            (6, 0.025, 2.446911851),
            (10, 0.005, 3.169272667),
            (29, 0.05, 1.699127027),
            (100, 0.025, 1.983971519),
        ] {
            assert!((upper_tail(t, freedom) - tail).abs() < 1e-8, "{freedom} {t} {}", upper_tail(t, freedom));
            assert!((quantile(tail, freedom) - t).abs() < 1e-6, "{freedom} {}", quantile(tail, freedom));
        }
        assert_eq!(upper_tail(0.0, 7), 0.5);
        assert!(upper_tail(1.0, 0).is_nan());
    }

    #[test]
    fn means_have_errors() {
        let found = TTest::of(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((found.mean, found.deviation, found.count), (2.0, 1.0, 3));
        // t = 2√3 with two degrees of freedom.
        assert!((found.above(0.0) - 0.03709).abs() < 1e-5, "{}", found.above(0.0));
        assert!((found.above(0.0) + found.below(0.0) - 1.0).abs() < 1e-12);
        assert_eq!(TTest::of(&[1.0]), None);
        assert_eq!(TTest::of(&[1.0, f64::NAN]), None);
        let same = TTest::of(&[0.0; 4]).unwrap();
        assert_eq!((same.above(-1.0), same.above(0.0), same.below(1.0)), (0.0, 1.0, 0.0));
    }

    proptest! {
        #[test]
        fn tails_are_probabilities(t in -50f64..50.0, freedom in 1usize..60) {
            let tail = upper_tail(t, freedom);
            prop_assert!((0.0..=1.0).contains(&tail));
            prop_assert!((tail + upper_tail(-t, freedom) - 1.0).abs() < 1e-12);
            prop_assert!(upper_tail(t + 0.5, freedom) <= tail + 1e-12);
        }
    }
}
