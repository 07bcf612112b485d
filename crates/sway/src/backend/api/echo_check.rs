//! Check whether a server scores given texts, and scores them right.
//!
//! `echo` is an old part of `/v1/completions` that many servers leave out.
//! Others support it, but shift the log-probabilities by one token: each is
//! conditioned on the token it belongs to. The check asks for a likely next
//! token, then scores the same token as a part of a text; both log-probabilities
//! must agree.

use super::client::{ApiFailure, ModelClient};
use crate::answer::{Answer, TokenNames};
use crate::error::QueryError;
use crate::prompt::Prompt;
use crate::question::{Query, Question};
use crate::view::View;

/// Several, because a token may merge with the end of its prompt.
const PROMPTS: [&str; 3] = ["hello", "The sky is", "One, two, three,"];

/// In nats. Rounding to 16 bits moves a likely token by a tenth of this; a
/// shift by one token moves most by several nats.
const MAX_DIFFERENCE: f64 = 0.5;

impl ModelClient {
    /// Runs the check and records a problem for all later questions.
    pub(super) async fn check_echo(&self) -> Result<(), ApiFailure> {
        for prompt in PROMPTS {
            if let Some(problem) = self.find_echo_problem(prompt).await? {
                let message = format!(
                    "{} cannot score given texts: {problem}; use a server that supports `echo`, such as \
                     `weightloom serve`",
                    self.endpoint()
                );
                let _ = self.echo_problem.set(Some(message));
                return Ok(());
            }
        }
        let _ = self.echo_problem.set(None);
        Ok(())
    }

    async fn find_echo_problem(&self, prompt: &str) -> Result<Option<String>, ApiFailure> {
        let question = |query| Question::new(&View::Base, query);
        let prompt = Prompt::from(prompt);
        let next = self.answer(&question(Query::Next { prompt: prompt.clone(), top_k: 1 })).await?;
        let Some((completion, next)) = most_likely(next) else { return Ok(None) };
        let query = Query::Completion { prompt, completion: completion.clone() };
        match self.try_answer(&question(query)).await {
            Ok(Answer::Completion(score)) if score.tokens == 1 => {
                let differs = (score.total - next).abs() > MAX_DIFFERENCE;
                Ok(differs.then(|| {
                    format!(
                        "its `echo` is wrong: the log-probability of {completion:?} is {:.2}, but {next:.2} as \
                         the next token",
                        score.total
                    )
                }))
            }
            Ok(_) | Err(ApiFailure::Question(QueryError::NoTokens { .. })) => Ok(None),
            Err(ApiFailure::Question(error)) => Ok(Some(error.to_string())),
            Err(failure) => Err(failure),
        }
    }
}

/// The most likely token, if it has a text, and its log-probability.
fn most_likely(answer: Answer) -> Option<(String, f64)> {
    let Answer::Distribution(found) = answer else { return None };
    let TokenNames::Strings(names) = found.tokens else { return None };
    let (name, logprob) = (names.into_iter().next()?, *found.logprobs.first()?);
    (!name.is_empty()).then_some((name, f64::from(logprob)))
}
