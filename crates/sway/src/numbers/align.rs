//! Alignment of two top-k distributions on the union of their tokens.
//!
//! Follows dlm-sway: the tail of a side is spread evenly over the tokens that
//! only the other side lists, and dropped if there are none. This overstates
//! those tokens; backends with the whole vocabulary compute exact divergences
//! instead.

use super::divergence::{DivergenceError, Side};
use super::summation::pairwise_sum;
use crate::answer::{Distribution, TokenNames};

/// Smallest range of log-probabilities: equal values throughout mean a broken
/// model.
const MIN_RANGE: f64 = 1e-9;

/// Probabilities of both sides over the union of their tokens, in token order.
/// Each side sums to one.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Aligned {
    pub base: Vec<f64>,
    pub tuned: Vec<f64>,
}

/// Aligns two distributions on the union of their tokens.
pub fn align(base: &Distribution, tuned: &Distribution) -> Result<Aligned, DivergenceError> {
    check(base, Side::Base)?;
    check(tuned, Side::Tuned)?;
    match (&base.tokens, &tuned.tokens) {
        (TokenNames::Ids(left), TokenNames::Ids(right)) => {
            align_tokens(left, &base.logprobs, right, &tuned.logprobs)
        }
        (TokenNames::Strings(left), TokenNames::Strings(right)) => {
            align_tokens(left, &base.logprobs, right, &tuned.logprobs)
        }
        _ => Err(DivergenceError::DifferentNames),
    }
}

fn check(side: &Distribution, which: Side) -> Result<(), DivergenceError> {
    let (tokens, logprobs) = (side.tokens.len(), side.logprobs.len());
    if tokens == 0 || tokens != logprobs {
        return Err(DivergenceError::Lengths { side: which, tokens, logprobs });
    }
    if let Some(found) = side.logprobs.iter().find(|logprob| !logprob.is_finite()) {
        return Err(DivergenceError::NotFinite { side: which, found: found.to_string() });
    }
    let least = side.logprobs.iter().copied().fold(f32::INFINITY, f32::min);
    let most = side.logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if tokens > 1 && f64::from(most) - f64::from(least) < MIN_RANGE {
        return Err(DivergenceError::Flat { side: which, tokens });
    }
    Ok(())
}

fn align_tokens<T: Ord>(
    base: &[T],
    base_logprobs: &[f32],
    tuned: &[T],
    tuned_logprobs: &[f32],
) -> Result<Aligned, DivergenceError> {
    let mut union: Vec<&T> = base.iter().chain(tuned).collect();
    union.sort();
    union.dedup();
    Ok(Aligned {
        base: spread_tail(&union, base, base_logprobs, Side::Base)?,
        tuned: spread_tail(&union, tuned, tuned_logprobs, Side::Tuned)?,
    })
}

fn spread_tail<T: Ord>(
    union: &[&T],
    tokens: &[T],
    logprobs: &[f32],
    side: Side,
) -> Result<Vec<f64>, DivergenceError> {
    let listed: Vec<f64> = logprobs.iter().map(|logprob| f64::from(*logprob).exp()).collect();
    let tail = (1.0 - pairwise_sum(&listed)).max(0.0);
    let mut aligned = vec![0.0; union.len()];
    for (token, probability) in tokens.iter().zip(listed) {
        if let Ok(slot) = union.binary_search(&token) {
            aligned[slot] = probability;
        }
    }
    let empty = aligned.iter().filter(|probability| **probability == 0.0).count();
    if empty > 0 && tail > 0.0 {
        let share = tail / empty as f64;
        for probability in &mut aligned {
            if *probability == 0.0 {
                *probability = share;
            }
        }
    }
    let total = pairwise_sum(&aligned);
    if !total.is_finite() || total <= 0.0 {
        return Err(DivergenceError::NoMass { side });
    }
    for probability in &mut aligned {
        *probability /= total;
    }
    Ok(aligned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_goes_to_tokens_of_the_other_side() {
        let ids = Distribution::of_ids;
        let half = 0.5f32.ln();
        let quarter = 0.25f32.ln();
        let aligned = align(&ids(&[1, 2], &[half, quarter]), &ids(&[3, 1], &[half, quarter])).unwrap();
        for (found, wanted) in [(aligned.base, [0.5, 0.25, 0.25]), (aligned.tuned, [0.25, 0.25, 0.5])] {
            for (found, wanted) in found.iter().zip(wanted) {
                assert!((found - wanted).abs() < 1e-7);
            }
        }
    }

    #[test]
    fn string_tokens_align_by_text() {
        let strings = |names: &[&str], logprobs: &[f32]| Distribution {
            tokens: TokenNames::Strings(names.iter().map(|&name| name.to_owned()).collect()),
            logprobs: logprobs.to_vec(),
            vocabulary: None,
            tail: None,
        };
        let left = strings(&["b", "a"], &[-0.1, -3.0]);
        let right = strings(&["a", "b"], &[-3.0, -0.1]);
        let aligned = align(&left, &right).unwrap();
        assert_eq!(aligned.base, aligned.tuned);
        assert_eq!(
            align(&left, &Distribution::of_ids(&[1, 2], &[-0.1, -3.0])),
            Err(DivergenceError::DifferentNames)
        );
    }

    #[test]
    fn invalid_distributions_are_rejected() {
        let ids = Distribution::of_ids;
        let good = ids(&[1, 2], &[-0.1, -3.0]);
        assert!(matches!(
            align(&good, &ids(&[1, 2], &[f32::NAN, -1.0])),
            Err(DivergenceError::NotFinite { side: Side::Tuned, .. })
        ));
        assert_eq!(
            align(&ids(&[1, 2], &[-1.0, -1.0]), &good),
            Err(DivergenceError::Flat { side: Side::Base, tokens: 2 })
        );
        assert_eq!(
            align(&ids(&[], &[]), &good),
            Err(DivergenceError::Lengths { side: Side::Base, tokens: 0, logprobs: 0 })
        );
        assert_eq!(
            align(&good, &ids(&[1], &[-1.0, -2.0])),
            Err(DivergenceError::Lengths { side: Side::Tuned, tokens: 1, logprobs: 2 })
        );
        // A single token has no range.
        assert!(align(&ids(&[1], &[-0.5]), &good).is_ok());
        // All probabilities underflow to zero, so the tail is spread over both.
        let nothing = ids(&[1, 2], &[-1e30, -2e30]);
        assert_eq!(align(&nothing, &ids(&[1, 2], &[-0.1, -3.0])).map(|a| a.base), Ok(vec![0.5, 0.5]));
    }
}
