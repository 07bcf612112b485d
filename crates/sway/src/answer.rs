//! What views answer.

use serde::{Deserialize, Serialize};

/// An answer. Which one belongs to which question, [`Ask`](crate::Ask) says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Which tokens come next.
    Distribution(Distribution),
    /// How far two distributions are apart.
    Divergence(Divergence),
    /// How likely a text is behind another.
    Completion(CompletionScore),
    /// How likely each token of a text is.
    Rolling(Rolling),
    /// A text.
    Text(String),
    /// A vector of the length 1.
    Meaning(Vec<f32>),
}

/// The likeliest next tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// What tokens are called: their numbers, or, from a server that tells only
    /// strings, the strings.
    pub tokens: TokenNames,
    /// Logarithms of their probabilities, the largest first.
    pub logprobs: Vec<f32>,
    /// How many tokens the model knows, if that is known.
    pub vocabulary: Option<usize>,
    /// The logarithm of the probability of all other tokens together; none if
    /// all are here or that is unknown; zero if there is nothing left.
    pub tail: Option<f64>,
}

#[cfg(test)]
impl Distribution {
    /// One of which nothing is known besides, for tests.
    pub(crate) fn of_ids(ids: &[u32], logprobs: &[f32]) -> Self {
        let tokens = TokenNames::Ids(ids.to_vec());
        Self { tokens, logprobs: logprobs.to_vec(), vocabulary: None, tail: None }
    }
}

/// What tokens are called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenNames {
    /// By number.
    Ids(Vec<u32>),
    /// By what they stand for.
    Strings(Vec<String>),
}

/// How far one distribution is from another, over the whole vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Jensen-Shannon, in nats.
    pub js: f64,
    /// Kullback-Leibler of the asked view from the other, in nats.
    pub kl: f64,
}

/// How likely a text is behind another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionScore {
    /// The sum of the logarithms.
    pub total: f64,
    /// How many tokens were summed.
    pub tokens: usize,
}

/// How likely each token of a text is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rolling {
    /// Logarithms of probabilities, of all tokens but the first.
    pub logprobs: Vec<f32>,
    /// How many tokens the text has.
    pub tokens: usize,
    /// The sum of the logarithms.
    pub total: f64,
}

impl Rolling {
    /// The mean over all tokens but the first, 0 if there is none.
    pub fn mean(&self) -> f64 {
        if self.tokens < 2 { 0.0 } else { self.total / (self.tokens - 1) as f64 }
    }
}
