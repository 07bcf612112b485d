//! Gradient clipping by norm.

/// Added to the norm against division by zero, as in PyTorch.
const EPS: f64 = 1e-6;

/// The factor that scales gradients with this norm down to a maximum norm. A
/// maximum of 0 means none. Non-finite norms are not clipped, so that the caller
/// can report them.
pub fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit <= 0.0 || !norm.is_finite() {
        return 1.0;
    }
    (limit / (norm + EPS)).min(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_large_norms_are_clipped() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(0.0, 1.0), 1.0);
        assert_eq!(clip_factor(1e9, 0.0), 1.0);
        assert_eq!(clip_factor(f64::NAN, 1.0), 1.0);
        assert_eq!(clip_factor(f64::INFINITY, 1.0), 1.0);
        assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn the_clipped_norm_is_at_most_the_limit(norm in 0.0f64..1e12, limit in 1e-6f64..1e6) {
            let factor = clip_factor(norm, limit);
            prop_assert!((0.0..=1.0).contains(&factor));
            prop_assert!(norm * factor <= limit * (1.0 + 1e-12));
            // And not far below it: `EPS` is the only slack.
            prop_assert!(norm * factor >= norm.min(limit) - limit * EPS / (norm + EPS) - 1e-9);
        }
    }
}
