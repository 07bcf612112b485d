//! Errors of backends and of single questions.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weightloom_errors::Hint;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum QueryError {
    #[error("the view `{view}` returned {found} for {text:?}")]
    NotFinite { view: String, found: String, text: String },
    #[error("{completion:?} adds no token to {prompt:?}")]
    NoTokens { prompt: String, completion: String },
    #[error("cannot score a text without tokens")]
    EmptyText,
    #[error("the backend `{backend}` cannot answer {query}")]
    Unsupported { backend: String, query: String },
    #[error("expected {expected}, but got another kind of answer")]
    WrongKind { expected: String },
    /// The backend reported a failure of this question.
    #[error("{message}")]
    Failed { message: String },
}

/// A backend that cannot answer any further question.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the backend `{backend}` failed: {message}")]
#[allow(missing_docs)]
pub struct BackendError {
    pub backend: String,
    pub message: String,
    pub hint: Option<String>,
}

impl BackendError {
    /// Keeps the message and the hint of `error`.
    pub fn new(backend: &str, error: &(impl std::fmt::Display + Hint)) -> Self {
        Self { backend: backend.to_owned(), message: error.to_string(), hint: error.hint() }
    }
}

impl Hint for BackendError {
    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}
