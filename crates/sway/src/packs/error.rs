//! What can be wrong with a file of texts.

use std::fmt;

use thiserror::Error;
use weightloom_errors::Hint;

/// Everything that is wrong with a file of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackError {
    /// The file.
    pub file: String,
    /// What is wrong, key by key.
    pub faults: Vec<PackFault>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackFault {
    /// The key; empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub problem: PackProblem,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PackProblem {
    /// The file cannot be read.
    #[error("cannot be read: {message}")]
    Unreadable { message: String },
    /// It is longer than texts are.
    #[error("has more than {most} bytes")]
    TooLong { most: u64 },
    /// It is no JSON.
    #[error("not JSON, in line {line}, column {column}: {message}")]
    Syntax { line: usize, column: usize, message: String },
    /// It is JSON, but no object.
    #[error("is not an object with keys")]
    NoObject,
    /// A key that means nothing.
    #[error("there is no such key")]
    UnknownKey { near: Option<String>, known: Vec<&'static str> },
    /// A value of another kind.
    #[error("is not {expected}")]
    Kind { expected: &'static str },
    /// Nothing where something must be.
    #[error("is empty")]
    Empty,
}

impl Hint for PackProblem {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unreadable { .. } => {
                "`defaults.packs` names a JSON file, from the folder of the suite".to_owned()
            }
            Self::TooLong { .. } => "give a file of short texts".to_owned(),
            Self::Syntax { .. } | Self::NoObject => {
                "write an object: {\"sentinel_prompts\": [\"Once\"], …}".to_owned()
            }
            Self::UnknownKey { near: Some(near), .. } => format!("write `{near}`"),
            Self::UnknownKey { known, .. } => format!("known keys: {}", known.join(", ")),
            Self::Kind { expected } => format!("write {expected}"),
            Self::Empty => "write something, or leave the key out".to_owned(),
        })
    }
}

impl fmt::Display for PackFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() { self.problem.fmt(f) } else { write!(f, "{}: {}", self.key, self.problem) }
    }
}

/// One fault is told as itself. Several are listed, each with its hint.
impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.faults.as_slice() {
            return write!(f, "{}: {only}", self.file);
        }
        write!(f, "{}: {} faults in the texts", self.file, self.faults.len())?;
        for fault in &self.faults {
            write!(f, "\n  {fault}")?;
            if let Some(hint) = fault.problem.hint() {
                write!(f, "\n    hint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for PackError {}

impl Hint for PackError {
    fn hint(&self) -> Option<String> {
        match self.faults.as_slice() {
            [only] => only.problem.hint(),
            // They stand with each.
            _ => None,
        }
    }
}
