//! Answers to score requests, from the numbers of a forward pass.

use super::logits::{divergence, log_softmax, top_k};
use super::request::{ScoreOutput, ScoreRequest};
use crate::answer::{Answer, CompletionScore, Rolling};
use crate::error::QueryError;
use crate::view::View;

/// Log-probabilities of the whole vocabulary, or a value that is not finite.
pub(in crate::backend) type LogProbs = Result<Vec<f64>, String>;

/// The log-probabilities of a row of logits.
pub(in crate::backend) fn log_probs(logits: &[f32]) -> LogProbs {
    log_softmax(logits).ok_or_else(|| not_finite_in(logits))
}

/// The value of a row of logits that is not finite.
fn not_finite_in(logits: &[f32]) -> String {
    let found = logits.iter().find(|logit| !logit.is_finite());
    found.map_or_else(|| "no finite logit".to_owned(), f32::to_string)
}

impl ScoreRequest {
    /// The most likely next tokens.
    pub(in crate::backend) fn next_tokens(&self, logits: &[f32], count: usize) -> Result<Answer, QueryError> {
        let found = top_k(logits, count).map(Answer::Distribution);
        found.ok_or_else(|| self.not_finite(&self.view, &not_finite_in(logits)))
    }

    /// The answer made of log-probabilities of tokens.
    pub(in crate::backend) fn log_likelihood(&self, logprobs: &[f32]) -> Result<Answer, QueryError> {
        if let Some(found) = logprobs.iter().find(|logprob| !logprob.is_finite()) {
            return Err(self.not_finite(&self.view, &found.to_string()));
        }
        let total = logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
        Ok(match self.output {
            ScoreOutput::Completion(_) => {
                Answer::Completion(CompletionScore { total, tokens: logprobs.len() })
            }
            _ => Answer::Rolling(Rolling { logprobs: logprobs.to_vec(), tokens: self.tokens.len(), total }),
        })
    }

    /// The divergence of its view from another.
    pub(in crate::backend) fn divergence(
        &self,
        own: &LogProbs,
        from_view: &View,
        from: &LogProbs,
    ) -> Result<Answer, QueryError> {
        let own = own.as_ref().map_err(|found| self.not_finite(&self.view, found))?;
        let from = from.as_ref().map_err(|found| self.not_finite(from_view, found))?;
        if own.len() != from.len() {
            let message = format!("cannot compare vocabularies of {} and {} tokens", own.len(), from.len());
            return Err(QueryError::Failed { message });
        }
        let found = divergence(own, from).map(Answer::Divergence);
        found.ok_or_else(|| self.not_finite(&self.view, "an infinite divergence"))
    }

    /// The embedding made of the mean hidden state.
    pub(in crate::backend) fn embedding(&self, mean: &[f32]) -> Result<Answer, QueryError> {
        let norm = mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        if norm.is_finite() && norm > 0.0 {
            Ok(Answer::Embedding(mean.iter().map(|&x| (f64::from(x) / norm) as f32).collect()))
        } else {
            Err(self.not_finite(&self.view, &format!("a vector of norm {norm}")))
        }
    }

    fn not_finite(&self, view: &View, found: &str) -> QueryError {
        QueryError::NotFinite { view: view.to_string(), found: found.to_owned(), text: self.text.clone() }
    }
}
