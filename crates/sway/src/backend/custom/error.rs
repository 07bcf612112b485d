//! What can go wrong with something of the user's own.

use std::fmt;
use std::time::Duration;

use weightloom_errors::Hint;

use super::KIND;
use crate::error::BackendError;

/// Where the protocol is told.
const PROTOCOL: &str = "docs/sway-backend-protocol.md tells what a backend says";

/// Why a backend of the user's own does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CustomError {
    /// It could not be started.
    #[error("`{program}` cannot be started: {message}")]
    Start { program: String, message: String },
    /// It kept silent for too long, and was ended.
    #[error("`{program}` said nothing for {after:?}, and was ended")]
    Hanging { program: String, after: Duration },
    /// It ended by itself.
    #[error("`{program}` ended ({status}){}", words(said))]
    Gone { program: String, status: String, said: String },
    /// It said something that is not of the protocol.
    #[error("`{program}` said what is no {expected}: {line}")]
    NotProtocol { program: String, expected: &'static str, line: String },
    /// It never ends a line.
    #[error("`{program}` said a line of more than {limit} bytes")]
    LongLine { program: String, limit: usize },
    /// It speaks another version.
    #[error("`{program}` speaks version {found} of the protocol, not {}", super::VERSION)]
    Version { program: String, found: u64 },
    /// It can do something that nobody knows.
    #[error("`{program}` says that it can do `{found}`, which is not known")]
    Capability { program: String, found: String, near: Option<String> },
    /// It knows one model only.
    #[error("`{program}` does not say that it answers for both models")]
    NotDifferential { program: String },
    /// It answered what nobody asked.
    #[error("`{program}` answered question {id}, which does not wait for an answer")]
    UnknownId { program: String, id: u64 },
    /// It says that it cannot begin.
    #[error("`{program}` cannot begin: {message}")]
    Refused { program: String, message: String },
    /// A Python class that cannot be used.
    #[error("`{entry}` cannot be used, {fault}: {message}")]
    Python { entry: String, fault: PythonFault, message: String },
    /// It was ended before.
    #[error("it was ended before")]
    Ended,
}

/// What is wrong with a Python class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonFault {
    /// Its module cannot be imported.
    Import,
    /// Its module has no such class.
    Attribute,
    /// It does not take `base_spec` and `adapter_path`.
    Signature,
    /// It failed while it was made.
    Constructor,
    /// It has no `as_base()` and `as_finetuned()`.
    NotDifferential,
}

impl PythonFault {
    /// By its name in the protocol.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "import" => Self::Import,
            "attribute" => Self::Attribute,
            "signature" => Self::Signature,
            "constructor" => Self::Constructor,
            "not_differential" => Self::NotDifferential,
            _ => return None,
        })
    }
}

impl fmt::Display for PythonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Import => "its module cannot be imported",
            Self::Attribute => "its module does not have it",
            Self::Signature => "it does not take `base_spec` and `adapter_path`",
            Self::Constructor => "it failed while it was made",
            Self::NotDifferential => "it does not answer for both models",
        })
    }
}

fn words(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(", its last words: {said}") }
}

impl Hint for CustomError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Start { .. } => {
                "see whether the file is there and can be run; WEIGHTLOOM_PYTHON names another Python".to_owned()
            }
            Self::Hanging { .. } => "give it more time by `timeout_s`".to_owned(),
            Self::NotProtocol { .. } => {
                format!("{PROTOCOL}; everything else belongs into its error output")
            }
            Self::LongLine { .. } | Self::Version { .. } | Self::UnknownId { .. } => PROTOCOL.to_owned(),
            Self::Capability { near: Some(near), .. } => format!("say `{near}`"),
            Self::Capability { near: None, .. } => PROTOCOL.to_owned(),
            Self::NotDifferential { .. } => "answer for the views base and tuned, and say `differential`".to_owned(),
            Self::Python { fault, .. } => match fault {
                PythonFault::Import => {
                    "put the module beside the suite, or install it for the Python that WEIGHTLOOM_PYTHON names"
                }
                PythonFault::Attribute => "write package.module:Class with a class that is there",
                PythonFault::Signature => "make it take the keywords base_spec and adapter_path",
                PythonFault::Constructor => "see its error output",
                PythonFault::NotDifferential => "give it the methods as_base() and as_finetuned()",
            }
            .to_owned(),
            Self::Gone { .. } | Self::Refused { .. } => "see its error output".to_owned(),
            Self::Ended => "start the run again".to_owned(),
        })
    }
}

impl CustomError {
    /// The error of the whole backend.
    pub(super) fn as_end(&self) -> BackendError {
        BackendError::new(KIND, self)
    }
}
