//! Whether a server tells how likely given texts are, and tells it right.
//!
//! `echo` is an old part of `/v1/completions` that many servers leave out.
//! Others have it, but tell of each token how likely it is behind *itself*:
//! their probabilities are those of the row below. So a server is asked first
//! for a token that it finds likely, and then for the same token as a part of
//! a text. Both numbers must be the same.

use super::client::{Client, Trouble};
use crate::answer::{Answer, TokenNames};
use crate::error::QueryError;
use crate::question::{Query, Question};
use crate::view::View;

/// Several, since a token may flow together with what stands before it.
const PROMPTS: [&str; 3] = ["hello", "The sky is", "One, two, three,"];

/// In nats. Rounding to 16 bits moves a likely token by a tenth of this; the
/// wrong row, by several nats for most.
const MOST_APART: f64 = 0.5;

impl Client {
    /// Tries it. What cannot be told is kept for all later questions.
    pub(super) async fn try_echo(&self) -> Result<(), Trouble> {
        for prompt in PROMPTS {
            if let Some(why) = self.tried(prompt).await? {
                let said = format!(
                    "{} cannot tell how likely given texts are: {why}; use a server that has `echo`, as `weightloom \
                     serve` has",
                    self.endpoint()
                );
                let _ = self.mute.set(Some(said));
                return Ok(());
            }
        }
        let _ = self.mute.set(None);
        Ok(())
    }

    /// What is wrong, if anything is.
    async fn tried(&self, prompt: &str) -> Result<Option<String>, Trouble> {
        let ask = |ask| Question::new(&View::Base, ask);
        let prompt = prompt.to_owned();
        let next = self.ask(&ask(Query::Next { prompt: prompt.clone(), top_k: 1 })).await?;
        let Some((completion, next)) = likeliest(next) else { return Ok(None) };
        let scored =
            self.try_asking(&ask(Query::Completion { prompt, completion: completion.clone() })).await;
        match scored {
            Ok(Answer::Completion(score)) if score.tokens == 1 => {
                let apart = (score.total - next).abs() > MOST_APART;
                Ok(apart.then(|| {
                    format!(
                        "its `echo` is wrong, since {completion:?} has the logarithm {:.2} there, and {next:.2} as \
                         the next token",
                        score.total
                    )
                }))
            }
            Ok(_) | Err(Trouble::Question(QueryError::NoTokens { .. })) => Ok(None),
            Err(Trouble::Question(error)) => Ok(Some(error.to_string())),
            Err(trouble) => Err(trouble),
        }
    }
}

/// The likeliest token, if it is a text, and the logarithm of its probability.
fn likeliest(answer: Answer) -> Option<(String, f64)> {
    let Answer::Distribution(found) = answer else { return None };
    let TokenNames::Strings(names) = found.tokens else { return None };
    let (name, logprob) = (names.into_iter().next()?, *found.logprobs.first()?);
    (!name.is_empty()).then_some((name, f64::from(logprob)))
}
