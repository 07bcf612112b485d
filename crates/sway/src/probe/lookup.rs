//! Looking up answers: what stops a probe, and lookups that several share.

use thiserror::Error;
use weightloom_errors::Panicked;

use super::context::ProbeContext;
use super::finding::InconsistentFinding;
use crate::answer_store::Missing;
use crate::backend::Capability;
use crate::error::QueryError;
use crate::numbers::{DivergenceError, DivergenceKind};
use crate::prompt::Prompt;
use crate::statistics::Statistics;
use crate::view::View;

/// Why a probe stops without a finding.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// Answers are missing. The store has recorded which.
    Pending,
    /// The probe cannot run.
    Failed(ProbeError),
}

/// Why a probe cannot run.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ProbeError {
    #[error(transparent)]
    Query(QueryError),
    #[error("cannot compare the distributions after {prompt:?}: {error}")]
    Incomparable { prompt: String, error: DivergenceError },
    #[error("the probe `{kind}` failed: {panic}")]
    Panicked { kind: String, panic: Panicked },
    #[error("the probe `{kind}` contradicts itself: {problem}")]
    Inconsistent { kind: String, problem: InconsistentFinding },
    /// A reason that only the probe knows.
    #[error("{reason}")]
    Unable { reason: String },
}

impl Stop {
    /// The probe cannot run, for a reason that only it knows.
    pub fn unable(reason: impl Into<String>) -> Self {
        Self::Failed(ProbeError::Unable { reason: reason.into() })
    }
}

impl From<Missing> for Stop {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Pending => Self::Pending,
            Missing::Failed(error) => Self::Failed(ProbeError::Query(error)),
        }
    }
}

/// Collects lookups. Every lookup runs, so that all missing questions are
/// recorded at once; the first failure is returned once nothing is missing.
pub fn all<T, E: Into<Stop>>(lookups: impl IntoIterator<Item = Result<T, E>>) -> Result<Vec<T>, Stop> {
    let mut found = Vec::new();
    let mut failed = None;
    let mut pending = false;
    for lookup in lookups {
        match lookup.map_err(Into::into) {
            Ok(value) => found.push(value),
            Err(Stop::Pending) => pending = true,
            Err(stop) => failed = failed.or(Some(stop)),
        }
    }
    match failed {
        _ if pending => Err(Stop::Pending),
        Some(stop) => Err(stop),
        None => Ok(found),
    }
}

/// Two lookups, both run.
pub fn both<A, B, E: Into<Stop>, F: Into<Stop>>(
    first: Result<A, E>,
    second: Result<B, F>,
) -> Result<(A, B), Stop> {
    match (first.map_err(Into::into), second.map_err(Into::into)) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(Stop::Pending), _) | (_, Err(Stop::Pending)) => Err(Stop::Pending),
        (Err(stop), _) | (_, Err(stop)) => Err(stop),
    }
}

/// Which next-token distributions are compared, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison<'a> {
    pub(crate) kind: DivergenceKind,
    pub(crate) top_k: usize,
    pub(crate) base: &'a View,
    pub(crate) tuned: &'a View,
}

impl<'a> Comparison<'a> {
    /// Compares the base and the fine-tuned view of a context.
    pub(crate) fn new(context: &'a ProbeContext<'_>, kind: DivergenceKind, top_k: Option<usize>) -> Self {
        let top_k = top_k.unwrap_or(context.top_k);
        Self { kind, top_k, base: &context.base, tuned: &context.tuned }
    }

    /// The divergence after a prompt.
    pub(crate) fn after(&self, context: &ProbeContext<'_>, prompt: &Prompt) -> Result<f64, Stop> {
        let prompt = &context.rendering.apply(prompt);
        if context.statistics == Statistics::Paired && context.can(Capability::FullVocabulary) {
            let found = context.answers.divergence(self.tuned, self.base, prompt)?;
            return Ok(match self.kind {
                DivergenceKind::Js => found.js,
                DivergenceKind::Kl => found.kl,
            });
        }
        let (base, tuned) = both(
            context.answers.next_token(self.base, prompt, self.top_k),
            context.answers.next_token(self.tuned, prompt, self.top_k),
        )?;
        self.kind.between(base, tuned).map_err(|error| {
            Stop::Failed(ProbeError::Incomparable { prompt: cut(&prompt.to_string(), 60), error })
        })
    }

    /// The divergence after each prompt.
    pub(crate) fn after_each(
        &self,
        context: &ProbeContext<'_>,
        prompts: &[Prompt],
    ) -> Result<Vec<f64>, Stop> {
        all(prompts.iter().map(|prompt| self.after(context, prompt)))
    }
}

/// Log-likelihood of an answer under the base and the fine-tuned view.
pub(crate) fn completions(
    context: &ProbeContext<'_>,
    prompt: &Prompt,
    answer: &str,
) -> Result<(f64, f64), Stop> {
    continuations(context, &context.rendering.apply(prompt), answer)
}

/// Log-likelihood of a completion under the base and the fine-tuned view, after
/// the prompt as it is.
pub(crate) fn continuations(
    context: &ProbeContext<'_>,
    prompt: &Prompt,
    text: &str,
) -> Result<(f64, f64), Stop> {
    let (base, tuned) = both(
        context.answers.completion(&context.base, prompt, text),
        context.answers.completion(&context.tuned, prompt, text),
    )?;
    Ok((base.total, tuned.total))
}

/// An estimate of the number of tokens: a quarter of the characters, at least
/// one. dlm-sway divides by this rather than by the tokenizer's count.
pub(crate) fn estimated_tokens(text: &str) -> f64 {
    (text.chars().count() / 4).max(1) as f64
}

/// The first characters of a text.
pub(crate) fn cut(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_answers_take_precedence_over_failures() {
        let failed = || Err(Stop::Failed(ProbeError::Query(QueryError::EmptyText)));
        let lookups: [Result<u8, Stop>; 3] = [failed(), Ok(1), Err(Stop::Pending)];
        assert_eq!(all(lookups), Err(Stop::Pending));
        assert_eq!(all([Ok(1), failed()]), failed().map(|one: u8| vec![one]));
        assert_eq!(all([Ok::<_, Stop>(1), Ok(2)]), Ok(vec![1, 2]));
        assert_eq!(both(failed() as Result<u8, Stop>, Err::<u8, _>(Stop::Pending)), Err(Stop::Pending));
    }

    #[test]
    fn tokens_are_estimated_as_a_quarter_of_the_characters() {
        assert_eq!(estimated_tokens(""), 1.0);
        assert_eq!(estimated_tokens("seven c"), 1.0);
        assert_eq!(estimated_tokens("ünïcödë!"), 2.0);
    }
}
