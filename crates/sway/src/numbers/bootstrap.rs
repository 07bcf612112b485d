//! Bootstrap confidence intervals, bit for bit those of numpy.

use super::pcg64::Pcg64;
use super::summation::pairwise_sum;

/// Number of bootstrap resamples.
pub const RESAMPLES: usize = 1000;

/// Percentiles that bound a 95 % interval. The lower one is the value of
/// `100 · (1 − 0.95) / 2` in binary floating point.
const ENDS: [f64; 2] = [2.500000000000002, 97.5];

/// 95 % confidence interval of the mean; `None` for no values or values that
/// are not finite.
pub fn mean_interval(values: &[f64], seed: u64) -> Option<[f64; 2]> {
    let count = values.len();
    let first = *values.first()?;
    if values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    if values.iter().all(|value| *value == first) {
        return Some([first, first]);
    }
    let mut row = vec![0.0; count];
    interval(count, seed, |indices| {
        for (slot, index) in row.iter_mut().zip(indices) {
            *slot = values[*index];
        }
        pairwise_sum(&row) / count as f64
    })
}

/// 95 % confidence interval of any statistic of `count` units; `statistic`
/// receives the indices of the units drawn.
pub fn interval(count: usize, seed: u64, mut statistic: impl FnMut(&[usize]) -> f64) -> Option<[f64; 2]> {
    let bound = u32::try_from(count).ok().filter(|bound| *bound > 0)?;
    let mut generator = Pcg64::new(seed);
    let mut indices = vec![0; count];
    let mut found = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        for index in &mut indices {
            *index = generator.below(bound) as usize;
        }
        found.push(statistic(&indices));
    }
    found.sort_by(f64::total_cmp);
    Some(ENDS.map(|percent| percentile(&found, percent)))
}

/// Percentile of sorted values by linear interpolation, as numpy computes it.
///
/// # Panics
///
/// Panics if there are no values.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let last = sorted.len() - 1;
    let position = last as f64 * (percent / 100.0);
    let below = (position.floor() as usize).min(last);
    let fraction = position - below as f64;
    let (left, right) = (sorted[below], sorted[(below + 1).min(last)]);
    let step = right - left;
    // From the nearer end, so that both ends are exact.
    if fraction >= 0.5 { right - step * (1.0 - fraction) } else { left + step * fraction }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn intervals_match_dlm_sway() {
        let values = [0.010637343860892606, 0.006726111759252678, 0.013683446339307789, 0.03615893521221293];
        assert_eq!(mean_interval(&values, 0), Some([0.008465445404266456, 0.02977853737438285]));
        assert_eq!(mean_interval(&[0.1, 0.4, 0.2, 0.9, 0.3], 0), Some([0.18, 0.6599999999999999]));
        // Twenty values take the pairwise path of the sum.
        let flags: Vec<f64> = (0..20).map(|i| f64::from(u8::from(i < 8))).collect();
        assert!(mean_interval(&flags, 0).is_some_and(|[low, high]| low >= 0.2 - 1e-9 && high <= 0.6 + 1e-9));
    }

    #[test]
    fn degenerate_samples_have_no_interval() {
        assert_eq!(mean_interval(&[], 0), None);
        assert_eq!(mean_interval(&[1.0, f64::NAN], 0), None);
        assert_eq!(mean_interval(&[0.5; 4], 0), Some([0.5, 0.5]));
        assert_eq!(interval(0, 0, |_| 1.0), None);
    }

    #[test]
    fn percentiles_interpolate_between_neighbours() {
        assert_eq!(percentile(&[1.0, 2.0, 4.0], 50.0), 2.0);
        assert_eq!(percentile(&[1.0, 2.0, 4.0], 75.0), 3.0);
        assert_eq!(percentile(&[1.0, 2.0, 4.0], 100.0), 4.0);
        assert_eq!(percentile(&[3.0], 10.0), 3.0);
    }

    proptest! {
        #[test]
        fn the_interval_lies_within_the_values(values in prop::collection::vec(-1e3f64..1e3, 1..30), seed: u64) {
            let [low, high] = mean_interval(&values, seed).unwrap();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(low <= high);
            prop_assert!(low >= least - 1e-9 && high <= most + 1e-9);
            prop_assert_eq!(Some([low, high]), mean_interval(&values, seed));
        }
    }
}
