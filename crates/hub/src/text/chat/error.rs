//! Why a conversation does not become a text.

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
    /// The template is not written correctly.
    #[error("line {line} of the chat template is wrong: {message}")]
    Syntax { line: usize, message: String },
    /// The template failed while it ran.
    #[error("line {line} of the chat template failed: {message}")]
    Failed { line: usize, message: String },
    /// The template does not accept the conversation.
    #[error("the chat template refuses the conversation: {message}")]
    Refused { message: String },
    /// The template does not come to an end.
    #[error("the chat template did not end within {limit} units of work")]
    Work { limit: u64 },
    /// The template is absurdly long.
    #[error("the chat template has {bytes} bytes, more than {limit}")]
    LongTemplate { bytes: usize, limit: usize },
    /// The text is absurdly long.
    #[error("the chat template made a text of more than {limit} bytes")]
    LongText { limit: usize },
    /// The template uses a name that is not its own.
    #[error("the chat template uses the name `{name}`, which is reserved")]
    Reserved { name: &'static str },
    /// No thread could be started.
    #[error("no thread can be started for the chat template: {message}")]
    Thread { message: String },
    /// The engine for templates panicked.
    #[error("the chat template broke the engine that runs it")]
    Broken,
    /// A file with a template cannot be read.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl Hint for ChatError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Text(error) => error.hint(),
            Self::Refused { .. } => Some("change the messages as it says".to_owned()),
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
