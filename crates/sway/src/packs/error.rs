//! Errors of text packs.

use std::fmt;

use thiserror::Error;
use weightloom_errors::{Hint, did_you_mean};

/// Every error of a text pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackError {
    /// The file.
    pub file: String,
    /// The errors, key by key.
    pub errors: Vec<PackKeyError>,
}

/// One error of a text pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackKeyError {
    /// The key; empty for the whole file.
    pub key: String,
    /// The problem.
    pub problem: PackProblem,
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PackProblem {
    #[error("cannot read the file: {message}")]
    Unreadable { message: String },
    #[error("has more than {most} bytes")]
    TooLong { most: u64 },
    #[error("invalid JSON at line {line}, column {column}: {message}")]
    Syntax { line: usize, column: usize, message: String },
    #[error("is not a JSON object")]
    NotAnObject,
    #[error("unknown key")]
    UnknownKey { near: Option<String>, known: Vec<&'static str> },
    #[error("is not {expected}")]
    Kind { expected: &'static str },
    #[error("is empty")]
    Empty,
}

impl Hint for PackProblem {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unreadable { .. } => {
                "set `defaults.packs` to a JSON file, relative to the suite".to_owned()
            }
            Self::TooLong { .. } => "use shorter texts".to_owned(),
            Self::Syntax { .. } | Self::NotAnObject => {
                "write an object: {\"sentinel_prompts\": [\"Once\"], …}".to_owned()
            }
            Self::UnknownKey { near: Some(near), .. } => return did_you_mean(Some(near)),
            Self::UnknownKey { known, .. } => format!("use {}", known.join(", ")),
            Self::Kind { expected } => format!("write {expected}"),
            Self::Empty => "write a value, or omit the key".to_owned(),
        })
    }
}

impl fmt::Display for PackKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() { self.problem.fmt(f) } else { write!(f, "{}: {}", self.key, self.problem) }
    }
}

/// A single error is shown as itself. Several are listed, each with its hint.
impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.errors.as_slice() {
            return write!(f, "{}: {only}", self.file);
        }
        write!(f, "{}: {} errors in the text pack", self.file, self.errors.len())?;
        for error in &self.errors {
            write!(f, "\n  {error}")?;
            if let Some(hint) = error.problem.hint() {
                write!(f, "\n    hint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for PackError {}

impl Hint for PackError {
    fn hint(&self) -> Option<String> {
        match self.errors.as_slice() {
            [only] => only.problem.hint(),
            // Each has its own.
            _ => None,
        }
    }
}
