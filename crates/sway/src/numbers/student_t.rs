//! Student's t distribution and the one-sample t-test.

use std::f64::consts::{FRAC_2_PI, PI};

use super::summation::mean;
use super::variance::population_variance;

/// Probability that Student's t exceeds `t`, by the finite sums for an integral
/// number of degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
pub fn upper_tail(t: f64, degrees_of_freedom: usize) -> f64 {
    if t.is_nan() || degrees_of_freedom == 0 {
        return f64::NAN;
    }
    let angle = (t.abs() / (degrees_of_freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let squared = cosine * cosine;
    let within = if degrees_of_freedom % 2 == 1 {
        let mut term = cosine;
        let mut sum = if degrees_of_freedom > 1 { cosine } else { 0.0 };
        for step in 1..degrees_of_freedom.saturating_sub(1) / 2 {
            term *= squared * (2 * step) as f64 / (2 * step + 1) as f64;
            sum += term;
        }
        FRAC_2_PI * (angle + sine * sum)
    } else {
        let mut term = 1.0;
        let mut sum = 1.0;
        for step in 1..degrees_of_freedom / 2 {
            term *= squared * (2 * step - 1) as f64 / (2 * step) as f64;
            sum += term;
        }
        sine * sum
    };
    debug_assert!(angle <= PI / 2.0);
    let tail = (0.5 * (1.0 - within)).clamp(0.0, 0.5);
    if t >= 0.0 { tail } else { 1.0 - tail }
}

/// The value that Student's t exceeds with probability `tail`, which must be
/// below one half.
pub fn quantile(tail: f64, degrees_of_freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while upper_tail(high, degrees_of_freedom) > tail && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if upper_tail(middle, degrees_of_freedom) > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// One-sample t-test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TTest {
    /// Sample mean.
    pub mean: f64,
    /// Sample standard deviation, with Bessel's correction.
    pub std_dev: f64,
    /// Standard error of the mean.
    pub std_error: f64,
    /// Sample size.
    pub count: usize,
}

impl TTest {
    /// Summarizes a sample; `None` for fewer than two values or values that are
    /// not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count < 2 || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let std_dev = (population_variance(values)? * count as f64 / (count - 1) as f64).sqrt();
        Some(Self { mean: mean(values)?, std_dev, std_error: std_dev / (count as f64).sqrt(), count })
    }

    /// One-sided p-value for a true mean greater than `limit`.
    pub fn p_greater(&self, limit: f64) -> f64 {
        if self.std_error == 0.0 {
            return if self.mean > limit { 0.0 } else { 1.0 };
        }
        upper_tail((self.mean - limit) / self.std_error, self.count - 1)
    }

    /// One-sided p-value for a true mean less than `limit`.
    pub fn p_less(&self, limit: f64) -> f64 {
        if self.std_error == 0.0 {
            return if self.mean < limit { 0.0 } else { 1.0 };
        }
        upper_tail((limit - self.mean) / self.std_error, self.count - 1)
    }

    /// 95 % confidence interval of the mean.
    pub fn confidence_interval(&self) -> [f64; 2] {
        let margin = quantile(0.025, self.count - 1) * self.std_error;
        [self.mean - margin, self.mean + margin]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tails_match_tables() {
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
    fn t_tests_match_known_values() {
        let found = TTest::of(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((found.mean, found.std_dev, found.count), (2.0, 1.0, 3));
        // t = 2√3 with two degrees of freedom.
        assert!((found.p_greater(0.0) - 0.03709).abs() < 1e-5, "{}", found.p_greater(0.0));
        assert!((found.p_greater(0.0) + found.p_less(0.0) - 1.0).abs() < 1e-12);
        assert_eq!(TTest::of(&[1.0]), None);
        assert_eq!(TTest::of(&[1.0, f64::NAN]), None);
        let same = TTest::of(&[0.0; 4]).unwrap();
        assert_eq!((same.p_greater(-1.0), same.p_greater(0.0), same.p_less(1.0)), (0.0, 1.0, 0.0));
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
