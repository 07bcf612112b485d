//! Why a server does not start.

use weightloom_errors::Hint;

/// Why a server does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ServeError {
    /// A model without a name.
    #[error("the model to serve has no name")]
    NoName,
    /// A key that anybody has.
    #[error("the API key is empty")]
    EmptyKey,
    /// A limit that lets nothing through.
    #[error("{option} is 0")]
    Zero { option: &'static str },
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}: {message}")]
    Listen { address: String, message: String },
    /// No thread for the model.
    #[error("no thread can be started for the model: {message}")]
    Thread { message: String },
    /// No runtime for connections.
    #[error("no runtime can be started for connections: {message}")]
    Runtime { message: String },
}

impl Hint for ServeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoName => Some("give the name that requests shall use".to_owned()),
            Self::EmptyKey => Some("leave the key out, or give one".to_owned()),
            Self::Zero { option } => Some(format!("set {option} to 1 or more")),
            Self::Listen { .. } => Some("use another port; 0 takes any that is free".to_owned()),
            Self::Thread { .. } | Self::Runtime { .. } => None,
        }
    }
}
