//! What can go wrong.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weightloom_errors::Hint;

/// Why one question has no answer. The others may have theirs.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum QueryError {
    /// The view gave something that is no number.
    #[error("{view} gave {found} behind {text:?}")]
    NotFinite { view: String, found: String, text: String },
    /// Nothing is left of a completion behind its prompt.
    #[error("{completion:?} adds no token to {prompt:?}")]
    NoTokens { prompt: String, completion: String },
    /// A text has no token at all.
    #[error("an empty text has no token")]
    EmptyText,
    /// The backend cannot do this.
    #[error("the backend {backend} cannot answer {query}")]
    Unsupported { backend: String, query: String },
    /// Another kind of answer came.
    #[error("expected {expected}, but got another kind of answer")]
    WrongKind { expected: String },
    /// The backend said so.
    #[error("{message}")]
    Failed { message: String },
}

/// Why a suite cannot be run, or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SwayError {
    /// The backend is gone, or never came.
    #[error("the backend {backend} failed: {message}")]
    Backend { backend: String, message: String, hint: Option<String> },
}

impl Hint for SwayError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Backend { hint, .. } => hint.clone(),
        }
    }
}
