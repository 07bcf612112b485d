//! Paired permutation test by sign flips.

use super::pcg64::Pcg64;
use super::summation::exact_sum;

/// Largest number of differences whose sign flips are enumerated.
const EXACT_LIMIT: usize = 14;
/// Number of random sign flips for larger samples.
const DRAWS: usize = 9999;

/// One-sided p-value for a positive sum of paired differences, under the null
/// hypothesis that the sign of each is arbitrary.
///
/// Enumerates all sign flips of small samples; draws random ones for larger
/// samples and counts the observed signs among them.
pub fn sign_flip_test(differences: &[f64], seed: u64) -> f64 {
    let count = differences.len();
    let observed = exact_sum(differences.iter().copied());
    // Sums that differ only by rounding count as equal.
    let slack = 1e-12 * differences.iter().map(|difference| difference.abs()).sum::<f64>();
    let reaches = |negative: &dyn Fn(usize) -> bool| {
        let signed = differences.iter().enumerate().map(|(i, d)| if negative(i) { -d } else { *d });
        exact_sum(signed) >= observed - slack
    };
    if count <= EXACT_LIMIT {
        let all = 1usize << count;
        let found = (0..all).filter(|mask| reaches(&|i| mask >> i & 1 == 1)).count();
        return found as f64 / all as f64;
    }
    let mut generator = Pcg64::new(seed);
    let mut words = vec![0u64; count.div_ceil(64)];
    let mut found = 1;
    for _ in 0..DRAWS {
        for word in &mut words {
            *word = generator.next_u64();
        }
        found += usize::from(reaches(&|i| words[i / 64] >> (i % 64) & 1 == 1));
    }
    found as f64 / (DRAWS + 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_samples_enumerate_all_sign_flips() {
        assert_eq!(sign_flip_test(&[1.0, 2.0, 3.0], 0), 1.0 / 8.0);
        assert_eq!(sign_flip_test(&[-1.0, -2.0], 0), 1.0);
        assert_eq!(sign_flip_test(&[0.0; 5], 0), 1.0);
        assert_eq!(sign_flip_test(&[], 0), 1.0);
        // The observed signs, and all positive.
        assert_eq!(sign_flip_test(&[-1.0, 2.0, 3.0], 0), 2.0 / 8.0);
    }

    #[test]
    fn large_samples_draw_sign_flips() {
        let up = vec![1.0; 40];
        assert_eq!(sign_flip_test(&up, 0), 1e-4);
        let balanced: Vec<f64> = (0..40).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!(sign_flip_test(&balanced, 0) > 0.4);
        assert_eq!(sign_flip_test(&balanced, 3), sign_flip_test(&balanced, 3));
    }
}
