//! Answers to questions.

use serde::{Deserialize, Serialize};

/// The answer to a [`Question`](crate::Question). [`Query`](crate::Query)
/// documents which variant answers which query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Answer {
    Distribution(Distribution),
    Divergence(Divergence),
    Completion(CompletionScore),
    Rolling(Rolling),
    Text(String),
    /// A vector of unit length.
    Embedding(Vec<f32>),
}

/// The most likely next tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Token ids, or strings if the server returns only those.
    pub tokens: TokenNames,
    /// Log-probabilities, in descending order.
    pub logprobs: Vec<f32>,
    /// Size of the vocabulary, if known.
    pub vocabulary: Option<usize>,
    /// Log of the total probability of all other tokens: `None` if there are
    /// none or it is unknown, zero if no probability is left.
    pub tail: Option<f64>,
}

#[cfg(test)]
impl Distribution {
    /// A distribution without vocabulary size or tail.
    pub(crate) fn of_ids(ids: &[u32], logprobs: &[f32]) -> Self {
        let tokens = TokenNames::Ids(ids.to_vec());
        Self { tokens, logprobs: logprobs.to_vec(), vocabulary: None, tail: None }
    }
}

/// How a backend identifies tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum TokenNames {
    Ids(Vec<u32>),
    Strings(Vec<String>),
}

impl TokenNames {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Strings(strings) => strings.len(),
        }
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Divergence of one distribution from another over the whole vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Jensen-Shannon divergence, in nats.
    pub js: f64,
    /// Kullback-Leibler divergence of the queried view from the other, in nats.
    pub kl: f64,
}

/// Log-likelihood of a completion given its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionScore {
    /// Sum of the log-probabilities.
    pub total: f64,
    /// Number of tokens in the sum.
    pub tokens: usize,
}

/// Log-likelihood of every token of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rolling {
    /// Log-probabilities of all tokens but the first.
    pub logprobs: Vec<f32>,
    /// Number of tokens, including the first.
    pub tokens: usize,
    /// Sum of the log-probabilities.
    pub total: f64,
}

impl Rolling {
    /// Mean log-probability; 0 for fewer than two tokens.
    pub fn mean(&self) -> f64 {
        if self.tokens < 2 { 0.0 } else { self.total / (self.tokens - 1) as f64 }
    }
}
