//! Whether two models are the same model: merged, quantised or resumed ones
//! should be.
//!
//! Not being able to show a difference is no proof of sameness. So the mean
//! divergence of the next token must be below a margin with confidence (an
//! equivalence test), and is judged above it only with confidence as well.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::answer::{Distribution, TokenNames};
use crate::numbers::student_t::TTest;
use crate::numbers::{DivergenceError, DivergenceKind, mean};

/// How often two models that differ by the margin may be called the same.
const LEVEL: f64 = 0.05;

/// The margin if nothing else is said: the mean Jensen-Shannon divergence of the
/// next token, in nats. Rounding weights to eight bits moves models much less,
/// any training much more.
pub const USUAL_MARGIN: f64 = 0.01;

/// What was found of two models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sameness {
    /// What follows.
    pub outcome: SamenessOutcome,
    /// How many prompts were asked.
    pub prompts: usize,
    /// The mean Jensen-Shannon divergence of the next token, in nats.
    pub divergence: f64,
    /// Where it lies with 95 % confidence.
    pub ci_95: Option<[f64; 2]>,
    /// The largest divergence, and the prompt that it is behind.
    pub worst: (f64, String),
    /// The part of prompts behind which both find the same token likeliest.
    pub agreement: f64,
    /// What the divergence was compared with.
    pub margin: f64,
}

/// What follows for two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamenessOutcome {
    /// They differ by less than the margin.
    Same,
    /// They differ by more.
    Different,
    /// The prompts do not decide.
    Undecided,
}

impl fmt::Display for SamenessOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same => "same",
            Self::Different => "different",
            Self::Undecided => "undecided",
        })
    }
}

/// What two models expect behind one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectations {
    /// The prompt.
    pub prompt: String,
    /// What the first one expects.
    pub first: Distribution,
    /// What the second one expects.
    pub second: Distribution,
}

/// Compares what two models expect. Nothing for no prompts.
pub fn compare(asked: &[Expectations], margin: f64) -> Result<Option<Sameness>, DivergenceError> {
    let mut distances = Vec::with_capacity(asked.len());
    let mut agreed = 0;
    for one in asked {
        distances.push(DivergenceKind::Js.between(&one.first, &one.second)?);
        agreed += usize::from(likeliest(&one.first) == likeliest(&one.second));
    }
    let worst = distances.iter().zip(asked).max_by(|(one, _), (other, _)| one.total_cmp(other));
    let (Some(divergence), Some((largest, at))) = (mean(&distances), worst) else { return Ok(None) };
    let error = TTest::of(&distances);
    let outcome = match &error {
        Some(error) if error.below(margin) <= LEVEL => SamenessOutcome::Same,
        Some(error) if error.above(margin) <= LEVEL => SamenessOutcome::Different,
        _ => SamenessOutcome::Undecided,
    };
    Ok(Some(Sameness {
        outcome,
        prompts: asked.len(),
        divergence,
        ci_95: error.map(|error| error.interval().map(|end| end.max(0.0))),
        worst: (*largest, at.prompt.clone()),
        agreement: agreed as f64 / asked.len() as f64,
        margin,
    }))
}

/// The first token of a list, by whatever name.
fn likeliest(distribution: &Distribution) -> Option<String> {
    match &distribution.tokens {
        TokenNames::Ids(ids) => ids.first().map(ToString::to_string),
        TokenNames::Strings(texts) => texts.first().cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(first: f32) -> Distribution {
        Distribution {
            tokens: TokenNames::Ids(vec![0, 1]),
            logprobs: vec![first.ln(), (1.0 - first).ln()],
            vocabulary: Some(2),
            tail: None,
        }
    }

    fn asked(pairs: &[(f32, f32)]) -> Vec<Expectations> {
        let one = |&(first, second): &(f32, f32)| Expectations {
            prompt: format!("{second}"),
            first: distribution(first),
            second: distribution(second),
        };
        pairs.iter().map(one).collect()
    }

    #[test]
    fn the_same_numbers_are_the_same_model() {
        let found = compare(&asked(&[(0.7, 0.7), (0.6, 0.6), (0.9, 0.9)]), 0.01).unwrap().unwrap();
        assert_eq!((found.outcome, found.divergence, found.agreement), (SamenessOutcome::Same, 0.0, 1.0));
    }

    #[test]
    fn what_lies_far_apart_is_another_model_and_the_worst_prompt_is_told() {
        let found = compare(&asked(&[(0.9, 0.52), (0.9, 0.55), (0.9, 0.6)]), 0.01).unwrap().unwrap();
        assert_eq!((found.outcome, found.worst.1.as_str()), (SamenessOutcome::Different, "0.52"));
        assert!(found.ci_95.unwrap()[0] > 0.01);
    }

    #[test]
    fn too_few_prompts_decide_nothing() {
        assert_eq!(
            compare(&asked(&[(0.7, 0.7)]), 0.01).unwrap().unwrap().outcome,
            SamenessOutcome::Undecided
        );
        let mixed = compare(&asked(&[(0.7, 0.7), (0.9, 0.7)]), 0.01).unwrap().unwrap();
        assert_eq!(mixed.outcome, SamenessOutcome::Undecided);
        assert_eq!(compare(&[], 0.01).unwrap(), None);
    }
}
