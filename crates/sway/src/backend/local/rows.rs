//! Numbers made of one row of logits.

use crate::answer::{Distribution, Divergence, TokenNames};

/// Less probability than this is none.
const NOTHING: f32 = 1e-12;

/// The logarithms of probabilities, in double precision. Nothing if one of them
/// is no number.
pub(super) fn log_probabilities(logits: &[f32]) -> Option<Vec<f64>> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !most.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    let most = f64::from(most);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    let total = most + sum.ln();
    Some(logits.iter().map(|&logit| f64::from(logit) - total).collect())
}

/// The likeliest tokens of a row, and what the others have together.
pub(super) fn distribution(logits: &[f32], top: usize) -> Option<Distribution> {
    let all = log_probabilities(logits)?;
    let vocabulary = all.len();
    let count = top.min(vocabulary);
    let mut tokens: Vec<u32> = (0..vocabulary as u32).collect();
    let by_chance = |a: &u32, b: &u32| all[*b as usize].total_cmp(&all[*a as usize]).then(a.cmp(b));
    if count > 0 && count < vocabulary {
        tokens.select_nth_unstable_by(count - 1, by_chance);
    }
    tokens.truncate(count);
    tokens.sort_unstable_by(by_chance);
    let logprobs: Vec<f32> = tokens.iter().map(|&token| all[token as usize] as f32).collect();
    if logprobs.iter().any(|logprob| !logprob.is_finite()) {
        return None;
    }
    let tail = (count < vocabulary).then(|| {
        // In single precision, as the reference has it.
        let mass = 1.0 - logprobs.iter().map(|logprob| logprob.exp()).sum::<f32>();
        if mass > NOTHING { f64::from(mass).ln() } else { 0.0 }
    });
    Some(Distribution { tokens: TokenNames::Ids(tokens), logprobs, vocabulary: Some(vocabulary), tail })
}

/// How far `asked` is from `from`, both logarithms of probabilities of all
/// tokens. Nothing if that is no number.
pub(super) fn divergence(asked: &[f64], from: &[f64]) -> Option<Divergence> {
    let (mut of_asked, mut of_from, mut kl) = (0.0, 0.0, 0.0);
    for (&a, &b) in asked.iter().zip(from) {
        let (p, q) = (a.exp(), b.exp());
        let middle = ((p + q) / 2.0).ln();
        if p > 0.0 {
            of_asked += p * (a - middle);
            kl += p * (a - b);
        }
        if q > 0.0 {
            of_from += q * (b - middle);
        }
    }
    let js = (of_asked + of_from) / 2.0;
    // Rounding alone makes them less than nothing.
    (js.is_finite() && kl.is_finite()).then(|| Divergence { js: js.max(0.0), kl: kl.max(0.0) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_tail_is_what_is_left() {
        let logits = [0.0_f32, 1.0, 2.0, 3.0];
        let all = distribution(&logits, 9).unwrap();
        assert_eq!(all.tokens, TokenNames::Ids(vec![3, 2, 1, 0]));
        assert_eq!((all.tail, all.vocabulary), (None, Some(4)));
        let two = distribution(&logits, 2).unwrap();
        let left: f64 = all.logprobs[2..].iter().map(|&x| f64::from(x).exp()).sum();
        assert!((two.tail.unwrap() - left.ln()).abs() < 1e-5);
        assert_eq!(distribution(&[100.0, -100.0, -100.0], 1).unwrap().tail, Some(0.0));
    }

    #[test]
    fn what_is_no_number_is_told() {
        assert_eq!(distribution(&[0.0, f32::NAN], 1), None);
        assert_eq!(distribution(&[0.0, f32::INFINITY], 1), None);
        assert_eq!(distribution(&[f32::NEG_INFINITY; 2], 1), None);
        // A token that cannot come is no fault, unless it is told.
        assert!(distribution(&[0.0, f32::NEG_INFINITY], 1).is_some());
        assert_eq!(distribution(&[0.0, f32::NEG_INFINITY], 2), None);
        let (a, b) = (log_probabilities(&[0.0, 0.0]), log_probabilities(&[0.0, f32::NEG_INFINITY]));
        assert_eq!(divergence(&a.unwrap(), &b.unwrap()), None);
    }

    #[test]
    fn divergences_of_two_coins() {
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
        fn divergences_are_distances(
            a in prop::collection::vec(-9.0f32..9.0, 12),
            b in prop::collection::vec(-9.0f32..9.0, 12),
        ) {
            let (a, b) = (log_probabilities(&a).unwrap(), log_probabilities(&b).unwrap());
            let (there, back) = (divergence(&a, &b).unwrap(), divergence(&b, &a).unwrap());
            prop_assert!((there.js - back.js).abs() < 1e-15);
            prop_assert!((0.0..=std::f64::consts::LN_2 + 1e-12).contains(&there.js));
            prop_assert!(there.kl >= 0.0);
            prop_assert!(divergence(&a, &a).unwrap().js < 1e-15);
        }
    }
}
