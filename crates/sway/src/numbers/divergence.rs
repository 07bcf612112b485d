//! Kullback-Leibler and Jensen-Shannon divergence, in nats.

use std::f64::consts::LN_2;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::align::{Aligned, align};
use super::summation::pairwise_sum;
use crate::answer::Distribution;

/// Replaces a probability of zero inside a logarithm.
const FLOOR: f64 = 1e-12;
/// Rounding error allowed beyond the bounds of a divergence.
const SLACK: f64 = 1e-9;

/// A divergence between next-token distributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DivergenceKind {
    /// Jensen-Shannon: symmetric, at most ln 2.
    #[default]
    Js,
    /// Kullback-Leibler divergence of the tuned model from the base.
    Kl,
}

impl DivergenceKind {
    /// The name in suite files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Js => "js",
            Self::Kl => "kl",
        }
    }

    /// Divergence of aligned probabilities.
    pub fn of(self, aligned: &Aligned) -> Result<f64, DivergenceError> {
        match self {
            Self::Js => js(&aligned.base, &aligned.tuned),
            Self::Kl => kl(&aligned.tuned, &aligned.base),
        }
    }

    /// Divergence of two top-k distributions.
    pub fn between(self, base: &Distribution, tuned: &Distribution) -> Result<f64, DivergenceError> {
        self.of(&align(base, tuned)?)
    }
}

/// Kullback-Leibler divergence of `p` from `q`.
pub fn kl(p: &[f64], q: &[f64]) -> Result<f64, DivergenceError> {
    let terms: Vec<f64> = p
        .iter()
        .zip(q)
        .filter(|(p, _)| **p > 0.0)
        .map(|(p, q)| p * (p.ln() - if *q > 0.0 { *q } else { FLOOR }.ln()))
        .collect();
    finite(pairwise_sum(&terms))
}

/// Jensen-Shannon divergence of `p` and `q`.
pub fn js(p: &[f64], q: &[f64]) -> Result<f64, DivergenceError> {
    let middle: Vec<f64> = p.iter().zip(q).map(|(p, q)| 0.5 * (p + q)).collect();
    let found = finite(0.5 * kl(p, &middle)? + 0.5 * kl(q, &middle)?)?;
    if !(-SLACK..=LN_2 + SLACK).contains(&found) {
        return Err(DivergenceError::OutOfBounds { found: found.to_string() });
    }
    Ok(found.max(0.0))
}

fn finite(found: f64) -> Result<f64, DivergenceError> {
    if found.is_finite() { Ok(found) } else { Err(DivergenceError::OutOfBounds { found: found.to_string() }) }
}

/// The model that a distribution comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Side {
    Base,
    Tuned,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base => "the base",
            Self::Tuned => "the tuned model",
        })
    }
}

/// Why two distributions cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DivergenceError {
    #[error("{side} returned {tokens} tokens with {logprobs} log-probabilities")]
    Lengths { side: Side, tokens: usize, logprobs: usize },
    #[error("{side} returned the log-probability {found}")]
    NotFinite { side: Side, found: String },
    #[error("{side} returned {tokens} equally likely tokens")]
    Flat { side: Side, tokens: usize },
    #[error("cannot match the tokens of the two sides: one uses ids and the other strings")]
    DifferentNames,
    #[error("the probabilities of {side} sum to zero")]
    NoMass { side: Side },
    #[error("{found} is outside the range of a divergence")]
    OutOfBounds { found: String },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn divergences_match_dlm_sway() {
        let base = Distribution::of_ids(&[5, 1, 9, 2], &[-0.3, -1.8, -3.2, -4.5]);
        let tuned = Distribution::of_ids(&[1, 5, 7, 2], &[-0.5, -1.2, -3.0, -5.0]);
        assert_eq!(DivergenceKind::Js.between(&base, &tuned), Ok(0.11541340266310172));
        assert_eq!(DivergenceKind::Kl.between(&base, &tuned), Ok(0.5178098067296172));
    }

    #[test]
    fn extreme_distributions_have_known_values() {
        assert_eq!(js(&[1.0, 0.0], &[0.0, 1.0]), Ok(LN_2));
        assert_eq!(js(&[0.3, 0.7], &[0.3, 0.7]), Ok(0.0));
        assert_eq!(kl(&[1.0, 0.0], &[0.0, 1.0]), Ok(-FLOOR.ln()));
        assert!(matches!(kl(&[f64::INFINITY], &[0.5]), Err(DivergenceError::OutOfBounds { .. })));
        assert!(matches!(js(&[4.0], &[0.0]), Err(DivergenceError::OutOfBounds { .. })));
    }

    prop_compose! {
        fn distribution(size: usize)(parts in prop::collection::vec(1e-6f64..1.0, size)) -> Vec<f64> {
            let total: f64 = parts.iter().sum();
            parts.iter().map(|part| part / total).collect()
        }
    }

    proptest! {
        #[test]
        fn js_is_symmetric_and_bounded(p in distribution(7), q in distribution(7)) {
            let there = js(&p, &q).unwrap();
            let back = js(&q, &p).unwrap();
            prop_assert!((there - back).abs() < 1e-15);
            prop_assert!((0.0..=LN_2).contains(&there));
            prop_assert!(kl(&p, &q).unwrap() >= -1e-12);
        }
    }
}
