//! Questions that a backend answers.

use serde::{Deserialize, Serialize};

use crate::prompt::Prompt;
use crate::view::{Real, View};

/// A [`Query`] addressed to one [`View`] of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Question {
    pub view: View,
    pub query: Query,
}

impl Question {
    /// Creates a question.
    pub fn new(view: &View, query: Query) -> Self {
        Self { view: view.clone(), query }
    }
}

/// One measurement of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Query {
    /// The `top_k` most likely next tokens. Answered by a
    /// [`Distribution`](crate::Distribution).
    Next { prompt: Prompt, top_k: usize },
    /// Divergence of the next-token distribution from that of another view,
    /// over the whole vocabulary. Answered by a
    /// [`Divergence`](crate::Divergence).
    Divergence { prompt: Prompt, from: View },
    /// Log-likelihood of a completion given a prompt. After plain text, both are
    /// tokenized as one string; after messages, the completion is the
    /// assistant's answer with the end of its turn. Answered by a
    /// [`CompletionScore`](crate::CompletionScore).
    Completion { prompt: Prompt, completion: String },
    /// Log-likelihood of every token of a text. Answered by a
    /// [`Rolling`](crate::Rolling).
    Text { text: String },
    /// Greedy continuation of a prompt. Answered by
    /// [`Answer::Text`](crate::Answer::Text).
    Generate { prompt: Prompt, max_new_tokens: usize },
    /// Embedding of a text, from the base alone. Answered by
    /// [`Answer::Embedding`](crate::Answer::Embedding).
    Embedding { text: String },
    /// Neutral text of about this many tokens, made of the model's padding
    /// token; needs the tokenizer of the base. Answered by
    /// [`Answer::Text`](crate::Answer::Text).
    Filler { tokens: usize },
    /// Random continuation of a prompt. A seed draws the same random numbers in
    /// every view. Answered by [`Answer::Text`](crate::Answer::Text).
    Sample { prompt: Prompt, max_new_tokens: usize, temperature: Real, top_p: Real, seed: u64 },
}
