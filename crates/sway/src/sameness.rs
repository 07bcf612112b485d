//! Tests whether two checkpoints behave as the same model, as merged, quantised
//! or resumed ones should.
//!
//! Failing to show a difference does not prove sameness. So this is an
//! equivalence test: the mean divergence of the next token must be
//! significantly below a margin, and counts as different only if it is
//! significantly above.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weightloom_errors::Hint;

use crate::answer::{Distribution, TokenNames};
use crate::answer_store::{AnswerStore, Missing};
use crate::backend::Backend;
use crate::error::{BackendError, QueryError};
use crate::numbers::student_t::TTest;
use crate::numbers::{DivergenceError, DivergenceKind, mean};
use crate::packs::Packs;
use crate::question::{Query, Question};
use crate::runner::{Observer, answer_all};
use crate::view::View;

/// How often two models that differ by exactly the margin are called the same.
const LEVEL: f64 = 0.05;

/// The default margin: mean Jensen-Shannon divergence of the next token, in
/// nats. Rounding weights to eight bits moves a model much less, training much
/// more.
pub const DEFAULT_MARGIN: f64 = 0.01;

/// How far apart two models are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sameness {
    /// The result of the test.
    pub outcome: SamenessOutcome,
    /// The number of prompts.
    pub prompts: usize,
    /// Mean Jensen-Shannon divergence of the next token, in nats.
    pub divergence: f64,
    /// 95 % confidence interval of the divergence.
    pub ci_95: Option<[f64; 2]>,
    /// The largest divergence, and its prompt.
    pub worst: (f64, String),
    /// Share of prompts after which both models rank the same token first.
    pub agreement: f64,
    /// The margin that the divergence was tested against.
    pub margin: f64,
}

/// The result of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamenessOutcome {
    /// The models differ by less than the margin.
    Same,
    /// The models differ by more than the margin.
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

/// Next-token distributions of two models after one prompt.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct PromptPair {
    pub prompt: String,
    pub first: Distribution,
    pub second: Distribution,
}

/// Prompts that many kinds of text begin with.
pub fn default_prompts() -> Vec<String> {
    let packs = Packs::builtin();
    let facts = packs.calibration_pack.iter().map(|(prompt, _)| prompt).take(32);
    packs.check_quick_prompts.iter().chain(&packs.sentinel_prompts).chain(facts).cloned().collect()
}

/// Why a model gave no distributions.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SamenessError {
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A question has no answer.
    #[error(transparent)]
    Question(#[from] QueryError),
}

impl Hint for SamenessError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Backend(error) => error.hint(),
            Self::Question(_) => None,
        }
    }
}

/// A view's next-token distribution after each prompt, over the whole
/// vocabulary.
pub fn next_tokens(
    backend: &mut dyn Backend,
    view: &View,
    prompts: &[String],
    observer: &mut dyn Observer,
) -> Result<Vec<Distribution>, SamenessError> {
    let question =
        |prompt: &String| Question::new(view, Query::Next { prompt: prompt.into(), top_k: usize::MAX });
    let questions: Vec<Question> = prompts.iter().map(question).collect();
    let answers = answer_all(&questions, backend, None, observer)?;
    let found =
        AnswerStore::all(prompts.iter().map(|prompt| answers.next_token(view, prompt, usize::MAX).cloned()));
    found.map_err(|missing| match missing {
        Missing::Failed(error) => error.into(),
        Missing::Pending => QueryError::Failed { message: format!("no answer came from {view}") }.into(),
    })
}

/// Compares two models. Returns nothing if there are no prompts.
pub fn compare(asked: &[PromptPair], margin: f64) -> Result<Option<Sameness>, DivergenceError> {
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
        Some(error) if error.p_less(margin) <= LEVEL => SamenessOutcome::Same,
        Some(error) if error.p_greater(margin) <= LEVEL => SamenessOutcome::Different,
        _ => SamenessOutcome::Undecided,
    };
    Ok(Some(Sameness {
        outcome,
        prompts: asked.len(),
        divergence,
        ci_95: error.map(|error| error.confidence_interval().map(|end| end.max(0.0))),
        worst: (*largest, at.prompt.clone()),
        agreement: agreed as f64 / asked.len() as f64,
        margin,
    }))
}

/// The first token of a list.
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

    fn asked(pairs: &[(f32, f32)]) -> Vec<PromptPair> {
        let one = |&(first, second): &(f32, f32)| PromptPair {
            prompt: format!("{second}"),
            first: distribution(first),
            second: distribution(second),
        };
        pairs.iter().map(one).collect()
    }

    #[test]
    fn equal_distributions_are_the_same_model() {
        let found = compare(&asked(&[(0.7, 0.7), (0.6, 0.6), (0.9, 0.9)]), 0.01).unwrap().unwrap();
        assert_eq!((found.outcome, found.divergence, found.agreement), (SamenessOutcome::Same, 0.0, 1.0));
    }

    #[test]
    fn distant_distributions_are_different_and_name_the_worst_prompt() {
        let found = compare(&asked(&[(0.9, 0.52), (0.9, 0.55), (0.9, 0.6)]), 0.01).unwrap().unwrap();
        assert_eq!((found.outcome, found.worst.1.as_str()), (SamenessOutcome::Different, "0.52"));
        assert!(found.ci_95.unwrap()[0] > 0.01);
    }

    #[test]
    fn too_few_prompts_are_undecided() {
        assert_eq!(
            compare(&asked(&[(0.7, 0.7)]), 0.01).unwrap().unwrap().outcome,
            SamenessOutcome::Undecided
        );
        let mixed = compare(&asked(&[(0.7, 0.7), (0.9, 0.7)]), 0.01).unwrap().unwrap();
        assert_eq!(mixed.outcome, SamenessOutcome::Undecided);
        assert_eq!(compare(&[], 0.01).unwrap(), None);
    }
}
