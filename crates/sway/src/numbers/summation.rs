//! Exactly rounded sums as Python's `fsum`, and pairwise sums as numpy's `sum`.

/// An exact sum, held as non-overlapping terms (Shewchuk 1997).
///
/// Each addition keeps its rounding error as a further term.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExactSum {
    terms: Vec<f64>,
    /// The sum of values that are not finite.
    special: Option<f64>,
}

impl ExactSum {
    pub(crate) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            self.special = Some(self.special.unwrap_or(0.0) + value);
            return;
        }
        let mut value = value;
        let mut kept = 0;
        for index in 0..self.terms.len() {
            let other = self.terms[index];
            let (large, small) = if value.abs() < other.abs() { (other, value) } else { (value, other) };
            let high = large + small;
            let low = small - (high - large);
            if low != 0.0 {
                self.terms[kept] = low;
                kept += 1;
            }
            value = high;
        }
        self.terms.truncate(kept);
        if value.is_finite() {
            self.terms.push(value);
        } else {
            self.special = Some(value);
        }
    }

    /// The terms in increasing order of magnitude.
    pub(crate) fn terms(&self) -> &[f64] {
        &self.terms
    }

    /// The nearest `f64`; ties round to even.
    pub(crate) fn rounded(&self) -> f64 {
        if let Some(special) = self.special {
            return special;
        }
        let mut rest = self.terms.iter().rev();
        let Some(&first) = rest.next() else { return 0.0 };
        let mut high = first;
        let mut low = 0.0;
        for &term in rest.by_ref() {
            let sum = high + term;
            low = term - (sum - high);
            high = sum;
            if low != 0.0 {
                break;
            }
        }
        // A tie is broken away from even by a smaller term of the same sign.
        if let Some(&next) = rest.next()
            && ((low < 0.0 && next < 0.0) || (low > 0.0 && next > 0.0))
        {
            let twice = low * 2.0;
            let sum = high + twice;
            if twice == sum - high {
                high = sum;
            }
        }
        high
    }
}

/// The exact sum, rounded once.
pub fn exact_sum(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sum = ExactSum::default();
    for value in values {
        sum.add(value);
    }
    sum.rounded()
}

/// The exact sum divided by the number of values; `None` for no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| exact_sum(values.iter().copied()) / values.len() as f64)
}

/// The sum of a contiguous row as numpy computes it: eight lanes, then in
/// halves.
pub fn pairwise_sum(values: &[f64]) -> f64 {
    let count = values.len();
    if count < 8 {
        // numpy starts at -0.0, so that a sum of negative zeros keeps its sign.
        return values.iter().fold(-0.0, |sum, value| sum + value) + 0.0;
    }
    if count <= 128 {
        let mut lanes = [0.0; 8];
        lanes.copy_from_slice(&values[..8]);
        let whole = count - count % 8;
        for block in values[8..whole].chunks_exact(8) {
            for (lane, value) in lanes.iter_mut().zip(block) {
                *lane += value;
            }
        }
        let sum =
            ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
        return values[whole..].iter().fold(sum, |sum, value| sum + value);
    }
    let half = (count / 2) - (count / 2) % 8;
    pairwise_sum(&values[..half]) + pairwise_sum(&values[half..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exact_sums_round_once() {
        assert_eq!(exact_sum([0.1; 10]), 1.0);
        assert_eq!(exact_sum([1e100, 1.0, -1e100, 1e-100]), 1.0);
        // Just above a half: the exact sum rounds up, a running one down.
        assert_eq!(exact_sum([1.0, f64::EPSILON / 2.0, f64::EPSILON / 1024.0]), 1.0 + f64::EPSILON);
        assert_eq!(exact_sum([]), 0.0);
        assert!(exact_sum([f64::INFINITY, f64::NEG_INFINITY]).is_nan());
        assert_eq!(exact_sum([f64::INFINITY, 1.0]), f64::INFINITY);
    }

    #[test]
    fn no_values_have_no_mean() {
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[0.1, 0.2, 0.3]), Some(0.6 / 3.0));
    }

    #[test]
    fn pairwise_sums_match_numpy() {
        // From numpy 2; a running sum gives 0.9999999999999999.
        assert_eq!(pairwise_sum(&[0.1; 10]), 1.0);
        assert_eq!(pairwise_sum(&[0.1; 8]), 0.8);
        assert_eq!(pairwise_sum(&[]), 0.0);
    }

    proptest! {
        #[test]
        fn exact_sums_do_not_depend_on_order(mut values in prop::collection::vec(-1e12f64..1e12, 0..60)) {
            let forward = exact_sum(values.iter().copied());
            values.reverse();
            prop_assert_eq!(forward, exact_sum(values.iter().copied()));
            values.sort_by(f64::total_cmp);
            prop_assert_eq!(forward, exact_sum(values.iter().copied()));
        }

        #[test]
        fn integer_sums_are_exact(values in prop::collection::vec(-1_000_000i64..1_000_000, 0..400)) {
            let numbers: Vec<f64> = values.iter().map(|v| *v as f64).collect();
            let sum = values.iter().sum::<i64>() as f64;
            prop_assert_eq!(pairwise_sum(&numbers), sum);
            prop_assert_eq!(exact_sum(numbers), sum);
        }
    }
}
