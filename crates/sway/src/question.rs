//! What is asked of a view.

use serde::{Deserialize, Serialize};

use crate::view::View;

/// One thing that is asked of one view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Question {
    /// The variant that is asked.
    pub view: View,
    /// What it is asked.
    pub ask: Ask,
}

impl Question {
    /// A question.
    pub fn new(view: &View, ask: Ask) -> Self {
        Self { view: view.clone(), ask }
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Which tokens come next, and how likely. Answered by a
    /// [`Distribution`](crate::Distribution).
    Next {
        /// The text before.
        prompt: String,
        /// How much of the distribution is kept.
        keep: Keep,
    },
    /// How far the next token's distribution is from another view's, over the
    /// whole vocabulary. Answered by a [`Divergence`](crate::Divergence).
    Divergence {
        /// The text before.
        prompt: String,
        /// The view that it is compared with.
        from: View,
    },
    /// How likely a text is behind another. Answered by a
    /// [`CompletionScore`](crate::CompletionScore).
    Completion {
        /// The text before.
        prompt: String,
        /// The text that is scored. Both are tokenized as one string.
        completion: String,
    },
    /// How likely each token of a text is. Answered by a
    /// [`Rolling`](crate::Rolling).
    Text {
        /// The text.
        text: String,
    },
    /// How the view writes on, always with the likeliest token. Answered by a
    /// text.
    Writing {
        /// The text before.
        prompt: String,
        /// The most tokens to add.
        max_new_tokens: usize,
    },
    /// A vector for what a text means. Asked of the base alone.
    Meaning {
        /// The text.
        text: String,
    },
    /// A text of about so many tokens that says nothing, made of the model's
    /// own padding. Asked of the base alone; needs its tokenizer. Answered by a
    /// text.
    Filler {
        /// How many tokens.
        tokens: usize,
    },
}

/// How much of a distribution is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The likeliest tokens.
    Top(usize),
}
