//! Errors that keep a server from starting.

use weightloom_errors::Hint;

/// Why a server cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ServeError {
    #[error("the model to serve has no name")]
    NoName,
    #[error("the API key is empty")]
    EmptyKey,
    #[error("`{option}` must not be 0")]
    Zero { option: &'static str },
    #[error("cannot listen on `{address}`: {message}")]
    Listen { address: String, message: String },
    #[error("cannot start a thread for the model: {message}")]
    Thread { message: String },
    #[error("cannot start the network runtime: {message}")]
    Runtime { message: String },
}

impl Hint for ServeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoName => Some("set the name that requests use".to_owned()),
            Self::EmptyKey => Some("set a key, or remove it".to_owned()),
            Self::Zero { option } => Some(format!("set `{option}` to 1 or more")),
            Self::Listen { .. } => Some("use another port, or 0 for any free port".to_owned()),
            Self::Thread { .. } | Self::Runtime { .. } => None,
        }
    }
}
