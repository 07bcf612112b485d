//! Population variance and standard deviation.
//!
//! Python computes both with fractions and rounds once. Here too the numerator
//! `n·Σx² − (Σx)²` is exact (error-free products and sums). It is rounded once,
//! then divided and, for the standard deviation, rooted, so results are within
//! two units in the last place. Equal values give exactly zero.

use super::summation::ExactSum;

/// Population variance; `None` for no values.
pub fn population_variance(values: &[f64]) -> Option<f64> {
    let (numerator, scale) = numerator(values)?;
    let count = values.len() as f64;
    Some(numerator / (count * count) * scale * scale)
}

/// Population standard deviation; `None` for no values.
pub fn population_std(values: &[f64]) -> Option<f64> {
    let (numerator, scale) = numerator(values)?;
    let count = values.len() as f64;
    Some((numerator / (count * count)).sqrt() * scale)
}

/// `n·Σx² − (Σx)²` of the values divided by a power of two, and that power.
/// Scaling keeps the squares from overflowing and underflowing.
fn numerator(values: &[f64]) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    if values.iter().any(|value| !value.is_finite()) {
        return Some((f64::NAN, 1.0));
    }
    let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    if largest == 0.0 {
        return Some((0.0, 1.0));
    }
    let scale = 2f64.powi(largest.log2().floor().clamp(-1000.0, 1000.0) as i32);
    let mut sum = ExactSum::default();
    let mut total = ExactSum::default();
    let count = values.len() as f64;
    for value in values {
        let value = value / scale;
        sum.add(value);
        let (high, low) = product(value, value);
        for term in [high, low] {
            let (high, low) = product(term, count);
            total.add(high);
            total.add(low);
        }
    }
    for left in sum.terms() {
        for right in sum.terms() {
            let (high, low) = product(*left, *right);
            total.add(-high);
            total.add(-low);
        }
    }
    Some((total.rounded().max(0.0), scale))
}

/// A product and its rounding error.
fn product(left: f64, right: f64) -> (f64, f64) {
    let high = left * right;
    (high, left.mul_add(right, -high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn matches_python() {
        // Python: statistics.pvariance and pstdev.
        assert_eq!(population_variance(&[0.1, 0.4, 0.2, 0.9, 0.3]), Some(0.0776));
        assert_eq!(population_std(&[0.0, 0.0, 1.0]), Some(0.471_404_520_791_031_7));
        assert_eq!(
            population_std(&[
                0.000_159_768_852_982_816_32,
                0.000_124_258_237_306_734_24,
                0.000_151_630_671_651_324_74
            ]),
            Some(1.518_948_460_477_240_6e-5)
        );
        assert_eq!(population_variance(&[]), None);
        assert_eq!(population_std(&[7.0]), Some(0.0));
        assert!(population_variance(&[f64::NAN]).is_some_and(f64::is_nan));
    }

    #[test]
    fn tiny_and_huge_values_keep_their_spread() {
        assert_eq!(population_std(&[0.0, 2e-200]), Some(1e-200));
        assert_eq!(population_std(&[0.0, 2e200]), Some(1e200));
        assert_eq!(population_std(&[1e16, 1e16 + 2.0]), Some(1.0));
    }

    proptest! {
        #[test]
        fn equal_values_have_no_variance(value in -1e300f64..1e300, count in 1usize..30) {
            prop_assert_eq!(population_variance(&vec![value; count]), Some(0.0));
        }

        #[test]
        fn integers_agree_with_fractions(values in prop::collection::vec(-10_000i64..10_000, 1..40)) {
            let count = values.len() as i64;
            let sum: i64 = values.iter().sum();
            let exact = (count * values.iter().map(|v| v * v).sum::<i64>() - sum * sum) as f64
                / (count * count) as f64;
            let numbers: Vec<f64> = values.iter().map(|v| *v as f64).collect();
            let found = population_variance(&numbers).unwrap();
            prop_assert!((found - exact).abs() <= exact * 4.0 * f64::EPSILON, "{} {}", found, exact);
        }
    }
}
