//! Errors of mining.

use thiserror::Error;
use weightloom_errors::{FileError, Hint};

use crate::error::BackendError;
use crate::sections::DocumentError;

/// Why prompts cannot be mined.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MineError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("cannot read `{file}`: unsupported file type `{found}`")]
    Type { file: String, found: String },
    #[error("{file}:{line}: invalid JSON: {message}")]
    Json { file: String, line: usize, message: String },
    #[error("cannot mine: a half of the data has {found} prompts, and {least} are needed")]
    TooFew { found: usize, least: usize },
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Hint for MineError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) => error.hint(),
            Self::Document(error) => error.hint(),
            Self::Backend(error) => error.hint(),
            Self::Type { .. } => Some(
                "use .jsonl, .txt with one prompt per line, or .md with one prompt per paragraph".to_owned(),
            ),
            Self::Json { .. } => Some("write one JSON object per line".to_owned()),
            Self::TooFew { .. } => Some("give more data, of which each text counts once".to_owned()),
        }
    }
}
