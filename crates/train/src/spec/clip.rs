//! Keeping gradients small.

/// What is added to the norm, so that gradients of no size divide nothing.
const ROOM: f64 = 1e-6;

/// What gradients are multiplied by, so that the norm of all of them together
/// is not above a limit. A limit of 0 is none. Gradients that are not finite
/// are left as they are, for whoever looks at the norm.
pub fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit <= 0.0 || !norm.is_finite() {
        return 1.0;
    }
    (limit / (norm + ROOM)).min(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_is_too_large_is_made_smaller() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(0.0, 1.0), 1.0);
        assert_eq!(clip_factor(1e9, 0.0), 1.0);
        assert_eq!(clip_factor(f64::NAN, 1.0), 1.0);
        assert_eq!(clip_factor(f64::INFINITY, 1.0), 1.0);
        assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn the_norm_ends_below_the_limit(norm in 0.0f64..1e12, limit in 1e-6f64..1e6) {
            let factor = clip_factor(norm, limit);
            prop_assert!((0.0..=1.0).contains(&factor));
            prop_assert!(norm * factor <= limit * (1.0 + 1e-12));
            // And not much below it: by the room that is left.
            prop_assert!(norm * factor >= norm.min(limit) - limit * ROOM / (norm + ROOM) - 1e-9);
        }
    }
}
