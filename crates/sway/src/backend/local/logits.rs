//! Distributions from rows of logits.

use crate::answer::{Distribution, Divergence, TokenNames};

/// Tail probabilities up to this count as zero.
const MIN_TAIL: f32 = 1e-12;

/// Log-probabilities in double precision; `None` if a logit is NaN or the
/// largest is not finite.
pub(super) fn log_softmax(logits: &[f32]) -> Option<Vec<f64>> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    let max = f64::from(max);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    Some(logits.iter().map(|&logit| f64::from(logit) - log_sum).collect())
}

/// The `k` most likely tokens and the probability of all others; `None` if a
/// log-probability is not finite.
pub(super) fn top_k(logits: &[f32], k: usize) -> Option<Distribution> {
    let all = log_softmax(logits)?;
    let vocabulary = all.len();
    let count = k.min(vocabulary);
    let mut tokens: Vec<u32> = (0..vocabulary as u32).collect();
    let by_probability = |a: &u32, b: &u32| all[*b as usize].total_cmp(&all[*a as usize]).then(a.cmp(b));
    if count > 0 && count < vocabulary {
        tokens.select_nth_unstable_by(count - 1, by_probability);
    }
    tokens.truncate(count);
    tokens.sort_unstable_by(by_probability);
    let logprobs: Vec<f32> = tokens.iter().map(|&token| all[token as usize] as f32).collect();
    if logprobs.iter().any(|logprob| !logprob.is_finite()) {
        return None;
    }
    let tail = (count < vocabulary).then(|| {
        // In single precision, as in dlm-sway.
        let mass = 1.0 - logprobs.iter().map(|logprob| logprob.exp()).sum::<f32>();
        if mass > MIN_TAIL { f64::from(mass).ln() } else { 0.0 }
    });
    Some(Distribution { tokens: TokenNames::Ids(tokens), logprobs, vocabulary: Some(vocabulary), tail })
}

/// Divergence of `own` from `from`, both log-probabilities of the whole
/// vocabulary; `None` if it is not finite.
pub(super) fn divergence(own: &[f64], from: &[f64]) -> Option<Divergence> {
    let (mut own_to_middle, mut from_to_middle, mut kl) = (0.0, 0.0, 0.0);
    for (&a, &b) in own.iter().zip(from) {
        let (p, q) = (a.exp(), b.exp());
        let middle = ((p + q) / 2.0).ln();
        if p > 0.0 {
            own_to_middle += p * (a - middle);
            kl += p * (a - b);
        }
        if q > 0.0 {
            from_to_middle += q * (b - middle);
        }
    }
    let js = (own_to_middle + from_to_middle) / 2.0;
    // Only rounding makes them negative.
    (js.is_finite() && kl.is_finite()).then(|| Divergence { js: js.max(0.0), kl: kl.max(0.0) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_tail_is_the_remaining_probability() {
        let logits = [0.0_f32, 1.0, 2.0, 3.0];
        let all = top_k(&logits, 9).unwrap();
        assert_eq!(all.tokens, TokenNames::Ids(vec![3, 2, 1, 0]));
        assert_eq!((all.tail, all.vocabulary), (None, Some(4)));
        let two = top_k(&logits, 2).unwrap();
        let left: f64 = all.logprobs[2..].iter().map(|&x| f64::from(x).exp()).sum();
        assert!((two.tail.unwrap() - left.ln()).abs() < 1e-5);
        assert_eq!(top_k(&[100.0, -100.0, -100.0], 1).unwrap().tail, Some(0.0));
    }

    #[test]
    fn rows_that_are_not_finite_have_no_distribution() {
        assert_eq!(top_k(&[0.0, f32::NAN], 1), None);
        assert_eq!(top_k(&[0.0, f32::INFINITY], 1), None);
        assert_eq!(top_k(&[f32::NEG_INFINITY; 2], 1), None);
        // An impossible token is an error only among the top k.
        assert!(top_k(&[0.0, f32::NEG_INFINITY], 1).is_some());
        assert_eq!(top_k(&[0.0, f32::NEG_INFINITY], 2), None);
        let (a, b) = (log_softmax(&[0.0, 0.0]), log_softmax(&[0.0, f32::NEG_INFINITY]));
        assert_eq!(divergence(&a.unwrap(), &b.unwrap()), None);
    }

    #[test]
    fn divergences_of_two_coins_match_the_formulas() {
        let coin = |p: f64| [p.ln(), (1.0 - p).ln()];
        let found = divergence(&coin(0.5), &coin(0.25)).unwrap();
        let kl = 0.5 * (0.5_f64 / 0.25).ln() + 0.5 * (0.5_f64 / 0.75).ln();
        assert!((found.kl - kl).abs() < 1e-15);
        let js = 0.5 * (0.5 * (0.5_f64 / 0.375).ln() + 0.5 * (0.5_f64 / 0.625).ln())
            + 0.5 * (0.25 * (0.25_f64 / 0.375).ln() + 0.75 * (0.75_f64 / 0.625).ln());
        assert!((found.js - js).abs() < 1e-15);
    }

    proptest! {
        #[test]
        fn divergences_are_nonnegative_and_js_is_symmetric(
            a in prop::collection::vec(-9.0f32..9.0, 12),
            b in prop::collection::vec(-9.0f32..9.0, 12),
        ) {
            let (a, b) = (log_softmax(&a).unwrap(), log_softmax(&b).unwrap());
            let (there, back) = (divergence(&a, &b).unwrap(), divergence(&b, &a).unwrap());
            prop_assert!((there.js - back.js).abs() < 1e-15);
            prop_assert!((0.0..=std::f64::consts::LN_2 + 1e-12).contains(&there.js));
            prop_assert!(there.kl >= 0.0);
            prop_assert!(divergence(&a, &a).unwrap().js < 1e-15);
        }
    }
}
