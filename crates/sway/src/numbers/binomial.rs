//! Exact binomial tails and the Clopper-Pearson interval.

/// Probability of at most `hits` successes in `trials` trials of probability
/// `p`.
pub fn at_most(hits: usize, trials: usize, p: f64) -> f64 {
    if hits >= trials || p <= 0.0 {
        return 1.0;
    }
    if p >= 1.0 {
        return 0.0;
    }
    let log_odds = (p / (1.0 - p)).ln();
    let mut log_term = trials as f64 * (-p).ln_1p();
    let mut sum = log_term.exp();
    for hit in 1..=hits {
        log_term += ((trials - hit + 1) as f64 / hit as f64).ln() + log_odds;
        sum += log_term.exp();
    }
    sum.clamp(0.0, 1.0)
}

/// Probability of at least `hits` successes in `trials` trials of probability
/// `p`.
pub fn at_least(hits: usize, trials: usize, p: f64) -> f64 {
    if hits == 0 { 1.0 } else { at_most(trials - hits.min(trials), trials, 1.0 - p) }
}

/// Clopper-Pearson 95 % confidence interval of a success probability.
pub fn clopper_pearson(hits: usize, trials: usize) -> [f64; 2] {
    let bisect = |is_below: &dyn Fn(f64) -> bool| {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if is_below(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        0.5 * (low + high)
    };
    let low = if hits == 0 { 0.0 } else { bisect(&|p| at_least(hits, trials, p) < 0.025) };
    let high = if hits >= trials { 1.0 } else { bisect(&|p| at_most(hits, trials, p) > 0.025) };
    [low, high]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn matches_known_values() {
        assert!((at_most(1, 3, 0.5) - 0.5).abs() < 1e-12);
        assert!((at_least(3, 3, 0.5) - 0.125).abs() < 1e-12);
        assert!((at_most(0, 10, 0.1) - 0.9f64.powi(10)).abs() < 1e-12);
        // From tables: 0 of 10, 3 of 10.
        let [low, high] = clopper_pearson(0, 10);
        assert!(low == 0.0 && (high - 0.3084971).abs() < 1e-6, "{high}");
        let [low, high] = clopper_pearson(3, 10);
        assert!((low - 0.0667395).abs() < 1e-6 && (high - 0.6524529).abs() < 1e-6, "{low} {high}");
        assert_eq!((at_most(2, 5, 0.0), at_most(2, 5, 1.0), at_most(5, 5, 0.3)), (1.0, 0.0, 1.0));
    }

    proptest! {
        #[test]
        fn both_tails_sum_to_one(count in 1usize..200, share in 0f64..1.0, p in 0.001f64..0.999) {
            let hits = (share * count as f64) as usize;
            let more = if hits == count { 0.0 } else { at_least(hits + 1, count, p) };
            prop_assert!((at_most(hits, count, p) + more - 1.0).abs() < 1e-9);
            let [low, high] = clopper_pearson(hits, count);
            let rate = hits as f64 / count as f64;
            prop_assert!(low <= rate && rate <= high);
        }
    }
}
