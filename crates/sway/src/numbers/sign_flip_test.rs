//! Whether differences of pairs lie to one side: their signs are exchanged.

use super::pcg64::Pcg64;
use super::summation::exact_sum;

/// Up to so many differences all exchanges are tried.
const ALL_UP_TO: usize = 14;
/// How many exchanges are drawn for more.
const DRAWS: usize = 9999;

/// The probability of so large a sum, or a larger one, if every difference
/// could as well have the other sign. Exact for a few differences, else by
/// random exchanges, the observed one counted among them.
pub fn sign_flip_test(differences: &[f64], seed: u64) -> f64 {
    let count = differences.len();
    let observed = exact_sum(differences.iter().copied());
    // Equal sums must count as equal whatever the order of rounding.
    let slack = 1e-12 * differences.iter().map(|difference| difference.abs()).sum::<f64>();
    let reaches = |negative: &dyn Fn(usize) -> bool| {
        let signed = differences.iter().enumerate().map(|(i, d)| if negative(i) { -d } else { *d });
        exact_sum(signed) >= observed - slack
    };
    if count <= ALL_UP_TO {
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
    fn all_exchanges_are_counted() {
        assert_eq!(sign_flip_test(&[1.0, 2.0, 3.0], 0), 1.0 / 8.0);
        assert_eq!(sign_flip_test(&[-1.0, -2.0], 0), 1.0);
        assert_eq!(sign_flip_test(&[0.0; 5], 0), 1.0);
        assert_eq!(sign_flip_test(&[], 0), 1.0);
        // 3, and 1 + 2 + 3 with the signs of 1 and 2 exchanged against each other.
        assert_eq!(sign_flip_test(&[-1.0, 2.0, 3.0], 0), 2.0 / 8.0);
    }

    #[test]
    fn many_differences_are_drawn() {
        let up = vec![1.0; 40];
        assert_eq!(sign_flip_test(&up, 0), 1e-4);
        let balanced: Vec<f64> = (0..40).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!(sign_flip_test(&balanced, 0) > 0.4);
        assert_eq!(sign_flip_test(&balanced, 3), sign_flip_test(&balanced, 3));
    }
}
