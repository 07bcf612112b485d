//! What can go wrong.

use serde::{Deserialize, Serialize};
use shardloom_layout::Hint;
use thiserror::Error;

/// Why one question has no answer. The others may have theirs.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AskError {
    /// The view gave something that is no number.
    #[error("{view} gave {found} behind {text:?}")]
    NotFinite {
        /// The view.
        view: String,
        /// What it gave.
        found: String,
        /// The beginning of the text.
        text: String,
    },
    /// Nothing is left of a completion behind its prompt.
    #[error("{completion:?} adds no token to {prompt:?}")]
    NoTokens {
        /// The beginning of the prompt.
        prompt: String,
        /// The beginning of the completion.
        completion: String,
    },
    /// A text has no token at all.
    #[error("an empty text has no token")]
    EmptyText,
    /// The backend cannot do this.
    #[error("the backend {backend} cannot answer {asked}")]
    NotAble {
        /// The backend.
        backend: String,
        /// What was asked.
        asked: String,
    },
    /// Another kind of answer came.
    #[error("asked for {asked}, another kind of answer came")]
    Mismatch {
        /// What was asked.
        asked: String,
    },
    /// The backend said so.
    #[error("{message}")]
    Refused {
        /// What it said.
        message: String,
    },
}

/// Why a suite cannot be run, or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SwayError {
    /// The backend is gone, or never came.
    #[error("the backend {backend} failed: {message}")]
    Backend {
        /// Which one.
        backend: String,
        /// How.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
}

impl Hint for SwayError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Backend { hint, .. } => hint.clone(),
        }
    }
}
