//! Logistic map from z-scores to scores between 0 and 1.

/// Standard deviations per unit of the logistic curve.
const SCALE: f64 = 3.0;

/// `1 / (1 + e^(−z/3))`: 0.5 at `z = 0`, 0.73 at `z = 3`.
pub fn logistic_score(z: f64) -> f64 {
    1.0 / (1.0 + (-(z / SCALE).clamp(-50.0, 50.0)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn matches_known_scores() {
        assert_eq!(logistic_score(3.0), 0.7310585786300049);
        assert_eq!(logistic_score(-2.5), 0.3029407160345927);
        assert_eq!(logistic_score(0.0), 0.5);
        assert_eq!(logistic_score(1e9), 1.0);
    }

    proptest! {
        #[test]
        fn grows_from_0_to_1(low in -1e3f64..1e3, more in 0f64..10.0) {
            prop_assert!(logistic_score(low) <= logistic_score(low + more));
            prop_assert!((0.0..=1.0).contains(&logistic_score(low)));
        }
    }
}
