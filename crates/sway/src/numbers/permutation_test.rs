//! Two-sample permutation test.

use super::pcg64::Pcg64;
use super::summation::exact_sum;

/// Number of random permutations.
const DRAWS: usize = 9999;

/// One-sided p-value for a higher mean of the first sample, under the null
/// hypothesis that labels are exchangeable. Counts the observed labels among the
/// random ones. Returns 1 if a sample is empty.
pub fn permutation_test(first: &[f64], second: &[f64], seed: u64) -> f64 {
    if first.is_empty() || second.is_empty() {
        return 1.0;
    }
    let mut all: Vec<f64> = first.iter().chain(second).copied().collect();
    // The total is constant, so the sum of the first sample orders the means.
    let observed = exact_sum(first.iter().copied());
    // Sums that differ only by rounding count as equal.
    let slack = 1e-12 * all.iter().map(|value| value.abs()).sum::<f64>();
    let mut generator = Pcg64::new(seed);
    let mut found = 1;
    for _ in 0..DRAWS {
        for place in 0..first.len() {
            let left = u32::try_from(all.len() - place).unwrap_or(u32::MAX);
            all.swap(place, place + generator.below(left) as usize);
        }
        found += usize::from(exact_sum(all[..first.len()].iter().copied()) >= observed - slack);
    }
    found as f64 / (DRAWS + 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_mean_is_significant_and_a_lower_one_is_not() {
        let (low, high): (Vec<f64>, Vec<f64>) =
            ((0..20).map(f64::from).collect(), (50..70).map(f64::from).collect());
        assert_eq!(permutation_test(&high, &low, 0), 1e-4);
        assert_eq!(permutation_test(&low, &high, 0), 1.0);
        assert_eq!(permutation_test(&[], &low, 0), 1.0);
        assert_eq!(permutation_test(&[0.5; 4], &[0.5; 9], 0), 1.0);
    }

    /// One of four values is the first sample: the highest has p = 1/4.
    #[test]
    fn small_samples_have_their_exact_probability() {
        let p = permutation_test(&[4.0], &[1.0, 2.0, 3.0], 7);
        assert!((p - 0.25).abs() < 0.02, "{p}");
    }

    /// Equal distributions are called different in at most 5 % of cases.
    #[test]
    fn the_level_is_kept() {
        let mut generator = Pcg64::new(3);
        let mut draw = |count: usize| -> Vec<f64> { (0..count).map(|_| generator.normal()).collect() };
        let samples: Vec<(Vec<f64>, Vec<f64>)> = (0..100).map(|_| (draw(8), draw(24))).collect();
        let rejected =
            samples.iter().filter(|(first, second)| permutation_test(first, second, 1) <= 0.05).count();
        // 11 of 100 or more has a probability below 1 % at the level of 5 %.
        assert!(rejected <= 10, "{rejected}");
    }
}
