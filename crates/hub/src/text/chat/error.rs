//! Errors of chat templates.

use std::error::Error as _;

use minijinja::Error;
use weightloom_errors::Hint;

use super::super::error::TextError;
use super::budget::Stop;

/// Why a chat template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ChatError {
    #[error("syntax error in line {line} of the chat template: {message}")]
    Syntax { line: usize, message: String },
    #[error("error in line {line} of the chat template: {message}")]
    Failed { line: usize, message: String },
    /// The template called `raise_exception`.
    #[error("the chat template rejects the conversation: {message}")]
    Refused { message: String },
    #[error("the chat template exceeds the limit of {limit} units of work")]
    Work { limit: u64 },
    #[error("the chat template exceeds the limit of {limit} bytes of memory")]
    Memory { limit: u64 },
    #[error("the chat template exceeds the limit of {seconds} seconds")]
    Time { seconds: u64 },
    #[error("the chat template nests values deeper than {limit}")]
    Nested { limit: usize },
    #[error("the tag in line {line} of the chat template has more than {limit} tokens")]
    LongTag { line: usize, limit: usize },
    #[error("line {line} of the chat template has more than {limit} characters")]
    LongLine { line: usize, limit: usize },
    #[error("the chat template has more than {limit} `elif` tags")]
    ManyBranches { limit: usize },
    #[error("the chat template has {bytes} bytes, more than the limit of {limit}")]
    LongTemplate { bytes: usize, limit: usize },
    #[error("the chat template renders more than {limit} bytes")]
    LongText { limit: usize },
    #[error("cannot start a thread for the chat template: {message}")]
    Thread { message: String },
    #[error("the template engine panicked")]
    Panicked,
    #[error(transparent)]
    Text(#[from] TextError),
}

impl Hint for ChatError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Text(error) => error.hint(),
            Self::Refused { .. } => Some("change the messages accordingly".to_owned()),
            Self::Work { .. } | Self::Memory { .. } | Self::Time { .. } | Self::LongText { .. } => {
                Some("shorten the conversation, or use a template that you trust".to_owned())
            }
            _ => None,
        }
    }
}

impl ChatError {
    pub(super) fn syntax(error: &Error) -> Self {
        Self::Syntax { line: line(error), message: message(error) }
    }

    pub(super) fn failed(error: &Error) -> Self {
        let mut source = error.source();
        while let Some(cause) = source {
            match cause.downcast_ref() {
                Some(Stop::Raised(message)) => return Self::Refused { message: message.clone() },
                Some(Stop::Work { limit }) => return Self::Work { limit: *limit },
                Some(Stop::Memory { limit }) => return Self::Memory { limit: *limit },
                Some(Stop::Time { seconds }) => return Self::Time { seconds: *seconds },
                Some(Stop::Nested { limit }) => return Self::Nested { limit: *limit },
                None => source = cause.source(),
            }
        }
        Self::Failed { line: line(error), message: message(error) }
    }
}

fn line(error: &Error) -> usize {
    error.line().unwrap_or(1)
}

fn message(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
