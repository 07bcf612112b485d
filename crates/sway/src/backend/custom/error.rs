//! Errors of custom backends.

use std::fmt;
use std::time::Duration;

use weightloom_errors::Hint;

const PROTOCOL: &str = "see the protocol in docs/sway-backend-protocol.md";

/// Why a custom backend does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CustomError {
    #[error("cannot start `{program}`: {message}")]
    Start { program: String, message: String },
    #[error("`{program}` did not answer within {after:?}, and was killed")]
    TimedOut { program: String, after: Duration },
    #[error("`{program}` exited ({status}){}", after_colon(stderr))]
    Exited { program: String, status: String, stderr: String },
    #[error("`{program}` printed an invalid {expected}: {line}")]
    NotProtocol { program: String, expected: &'static str, line: String },
    #[error("`{program}` printed a line of more than {limit} bytes")]
    LongLine { program: String, limit: usize },
    #[error("`{program}` speaks version {found} of the protocol, but this is version {}", super::VERSION)]
    Version { program: String, found: u64 },
    #[error("`{program}` has an unknown capability `{found}`")]
    Capability { program: String, found: String, near: Option<String> },
    #[error("`{program}` lacks the capability `differential`")]
    NotDifferential { program: String },
    #[error("`{program}` answered question {id}, which is not pending")]
    UnknownId { program: String, id: u64 },
    #[error("`{program}` refused to start: {message}")]
    Refused { program: String, message: String },
    #[error("cannot use `{entry}`: {problem}: {message}")]
    Python { entry: String, problem: PythonProblem, message: String },
    #[error("the program was stopped by an earlier error")]
    Stopped,
}

/// Why a Python class cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PythonProblem {
    Import,
    Attribute,
    Signature,
    Constructor,
    NotDifferential,
}

impl PythonProblem {
    /// Parses the name in the protocol.
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

impl fmt::Display for PythonProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Import => "the module cannot be imported",
            Self::Attribute => "the module has no such class",
            Self::Signature => "the class does not accept `base_spec` and `adapter_path`",
            Self::Constructor => "the constructor failed",
            Self::NotDifferential => "the class does not answer for both models",
        })
    }
}

fn after_colon(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!(": {stderr}") }
}

impl Hint for CustomError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Start { .. } => {
                "check that the file exists and is executable, or set WEIGHTLOOM_PYTHON to another Python"
            }
            Self::TimedOut { .. } => "increase `timeout_s`",
            Self::NotProtocol { .. } => {
                return Some(format!("{PROTOCOL}; print everything else to standard error"));
            }
            Self::Capability { near: Some(near), .. } => return Some(format!("did you mean `{near}`?")),
            Self::LongLine { .. }
            | Self::Version { .. }
            | Self::UnknownId { .. }
            | Self::Capability { near: None, .. } => PROTOCOL,
            Self::NotDifferential { .. } => {
                "answer for the views `base` and `tuned`, and list the capability `differential`"
            }
            Self::Python { problem, .. } => match problem {
                PythonProblem::Import => {
                    "put the module beside the suite, or install it for the Python in WEIGHTLOOM_PYTHON"
                }
                PythonProblem::Attribute => "write package.module:Class with an existing class",
                PythonProblem::Signature => "accept the keyword arguments base_spec and adapter_path",
                PythonProblem::NotDifferential => "add the methods as_base() and as_finetuned()",
                PythonProblem::Constructor => "check its standard error",
            },
            Self::Exited { .. } | Self::Refused { .. } => "check its standard error",
            Self::Stopped => "start the run again",
        };
        Some(hint.to_owned())
    }
}
