//! Reading in the answers: what stops a probe, and readings that several share.

use thiserror::Error;

use super::setting::Setting;
use crate::answer_store::Missing;
use crate::backend::Capability;
use crate::error::QueryError;
use crate::numbers::{DivergenceError, DivergenceKind};
use crate::statistics::Statistics;
use crate::view::View;

/// Why a probe stops.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// Some answers have to come first. The answers has noted which.
    Yet,
    /// It cannot be carried out.
    Fault(ProbeFault),
}

/// Why a probe cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ProbeFault {
    /// A question has no answer.
    #[error("{0}")]
    Unanswered(QueryError),
    /// Two distributions cannot be compared.
    #[error("behind {prompt:?}: {error}")]
    Incomparable { prompt: String, error: DivergenceError },
}

impl From<Missing> for Stop {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Pending => Self::Yet,
            Missing::Failed(error) => Self::Fault(ProbeFault::Unanswered(error)),
        }
    }
}

/// All of some readings. Each is tried, so that all that is missing is noted at
/// once; the first fault is told when nothing is missing any more.
pub(crate) fn all<T, E: Into<Stop>>(
    readings: impl IntoIterator<Item = Result<T, E>>,
) -> Result<Vec<T>, Stop> {
    let mut found = Vec::new();
    let mut fault = None;
    let mut yet = false;
    for reading in readings {
        match reading.map_err(Into::into) {
            Ok(value) => found.push(value),
            Err(Stop::Yet) => yet = true,
            Err(stop) => fault = fault.or(Some(stop)),
        }
    }
    match fault {
        _ if yet => Err(Stop::Yet),
        Some(stop) => Err(stop),
        None => Ok(found),
    }
}

/// Two readings, both tried.
pub(crate) fn both<A, B, E: Into<Stop>, F: Into<Stop>>(
    first: Result<A, E>,
    second: Result<B, F>,
) -> Result<(A, B), Stop> {
    match (first.map_err(Into::into), second.map_err(Into::into)) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(Stop::Yet), _) | (_, Err(Stop::Yet)) => Err(Stop::Yet),
        (Err(stop), _) | (_, Err(stop)) => Err(stop),
    }
}

/// Which distributions are compared, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison<'a> {
    pub(crate) kind: DivergenceKind,
    pub(crate) top_k: usize,
    pub(crate) base: &'a View,
    pub(crate) tuned: &'a View,
}

impl Comparison<'_> {
    /// How far the next token's distributions are apart behind a prompt.
    pub(crate) fn behind(&self, setting: &Setting<'_>, prompt: &str) -> Result<f64, Stop> {
        if setting.statistics == Statistics::Paired && setting.can(Capability::FullVocabulary) {
            let found = setting.answers.divergence(self.tuned, self.base, prompt)?;
            return Ok(match self.kind {
                DivergenceKind::Js => found.js,
                DivergenceKind::Kl => found.kl,
            });
        }
        let (base, tuned) = both(
            setting.answers.next_token(self.base, prompt, self.top_k),
            setting.answers.next_token(self.tuned, prompt, self.top_k),
        )?;
        self.kind
            .between(base, tuned)
            .map_err(|error| Stop::Fault(ProbeFault::Incomparable { prompt: cut(prompt, 60), error }))
    }

    /// The same behind each of some prompts.
    pub(crate) fn behind_each(&self, setting: &Setting<'_>, prompts: &[String]) -> Result<Vec<f64>, Stop> {
        all(prompts.iter().map(|prompt| self.behind(setting, prompt)))
    }
}

/// How likely a text is behind another, to the base and to the tuned view.
pub(crate) fn completions(setting: &Setting<'_>, prompt: &str, text: &str) -> Result<(f64, f64), Stop> {
    let (base, tuned) = both(
        setting.answers.completion(&setting.base, prompt, text),
        setting.answers.completion(&setting.tuned, prompt, text),
    )?;
    Ok((base.total, tuned.total))
}

/// How many tokens a text may have: a quarter of its characters, at least one.
/// dlm-sway divides by this, not by what the tokenizer says.
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
    fn what_is_missing_goes_before_what_failed() {
        let failed = || Err(Stop::Fault(ProbeFault::Unanswered(QueryError::EmptyText)));
        let readings: [Result<u8, Stop>; 3] = [failed(), Ok(1), Err(Stop::Yet)];
        assert_eq!(all(readings), Err(Stop::Yet));
        assert_eq!(all([Ok(1), failed()]), failed().map(|one: u8| vec![one]));
        assert_eq!(all([Ok::<_, Stop>(1), Ok(2)]), Ok(vec![1, 2]));
        assert_eq!(both(failed() as Result<u8, Stop>, Err::<u8, _>(Stop::Yet)), Err(Stop::Yet));
    }

    #[test]
    fn tokens_are_a_quarter_of_the_characters() {
        assert_eq!(estimated_tokens(""), 1.0);
        assert_eq!(estimated_tokens("seven c"), 1.0);
        assert_eq!(estimated_tokens("ünïcödë!"), 2.0);
    }
}
