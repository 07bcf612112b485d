//! Errors of commands, with their exit codes.

use std::error::Error;
use std::fmt;

use serde_json::{Value, json};
use weightloom::checkpoint::{CheckpointError, StorageError};
use weightloom::errors::Hint;
use weightloom::gang::conformance::ConformanceError;
use weightloom::hub::HubError;
use weightloom::launch::{ExitStatus, LaunchError};
use weightloom::train::TrainError;
use weightloom_files::WriteError;

/// Why a command failed.
#[derive(Debug)]
pub(super) struct Failure {
    kind: CallErrorKind,
    message: String,
    hint: Option<String>,
    /// Whether another rank failed first.
    is_consequence: bool,
}

/// Why a command that a program called failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[allow(missing_docs)]
pub struct CallError {
    pub kind: CallErrorKind,
    pub message: String,
    /// What would fix it.
    pub hint: Option<String>,
}

/// Errors of the crates below, as commands report them.
macro_rules! call_error_from {
    ($($error:ty),*) => {
        $(impl From<$error> for CallError {
            fn from(error: $error) -> Self {
                Failure::from(error).into()
            }
        })*
    };
}

call_error_from!(CheckpointError, ConformanceError, HubError, TrainError, LaunchError);

/// What kind of failure a command met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallErrorKind {
    /// A check failed: damage, a difference, a NaN.
    Check,
    /// The request is wrong.
    User,
    /// The machine, the network, the disk or another rank failed.
    Operational,
}

impl Hint for CallError {
    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        let Failure { kind, message, hint, .. } = failure;
        Self { kind, message, hint }
    }
}

impl Failure {
    /// A check failed.
    pub(super) fn check(message: String) -> Self {
        Self { kind: CallErrorKind::Check, message, hint: None, is_consequence: false }
    }

    /// A check failed, with a hint.
    pub(super) fn check_with_hint<E: Error + Hint>(error: &E) -> Self {
        Self { kind: CallErrorKind::Check, message: chain(error), hint: error.hint(), is_consequence: false }
    }

    /// An invalid request of the user.
    pub(super) fn user<E: Error + Hint>(error: &E) -> Self {
        Self { kind: CallErrorKind::User, message: chain(error), hint: error.hint(), is_consequence: false }
    }

    /// A failure of the machine, the network or the disk.
    pub(super) fn operational(error: &dyn Error) -> Self {
        Self { kind: CallErrorKind::Operational, message: chain(error), hint: None, is_consequence: false }
    }

    /// An operational failure, with a hint.
    pub(super) fn operational_with_hint<E: Error + Hint>(error: &E) -> Self {
        Self { hint: error.hint(), ..Self::operational(error) }
    }

    /// An invalid command line.
    pub(super) fn usage(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let facts =
            text.lines().take_while(|line| !line.starts_with("Usage:") && !line.trim().starts_with("tip:"));
        let facts: Vec<&str> = facts.map(str::trim).filter(|line| !line.is_empty()).collect();
        let message = facts.join(" ").trim_start_matches("error: ").to_owned();
        let hint = text.lines().find_map(|line| line.trim().strip_prefix("tip: ")).map(str::to_owned);
        Self { kind: CallErrorKind::User, message, hint, is_consequence: false }
    }

    /// Marks the failure as a consequence of another rank's.
    pub(super) fn of_others(mut self) -> Self {
        self.is_consequence = true;
        self
    }

    /// Prefixes the message with its subject.
    pub(super) fn about(mut self, subject: &str) -> Self {
        self.message = format!("{subject}: {}", self.message);
        self
    }

    pub(super) fn to_json(&self) -> Value {
        let kind = match self.kind {
            CallErrorKind::Check => "check",
            CallErrorKind::User => "user",
            CallErrorKind::Operational => "operational",
        };
        json!({ "error": { "kind": kind, "message": self.message, "hint": self.hint } })
    }
}

/// An error and its causes, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl ExitStatus for Failure {
    fn is_consequence(&self) -> bool {
        self.is_consequence
    }

    fn code(&self) -> u8 {
        match self.kind {
            CallErrorKind::Check => 1,
            CallErrorKind::User => 2,
            CallErrorKind::Operational => 3,
        }
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::BuiltWithoutMpi { .. }
            | LaunchError::OneProcess { .. }
            | LaunchError::OtherSize { .. }
            | LaunchError::NoRanks => Self::user(&error),
            _ => Self::operational_with_hint(&error),
        }
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        match &error {
            CheckpointError::Damaged(_)
            | CheckpointError::DamagedBytes { .. }
            | CheckpointError::Format { .. }
            | CheckpointError::Index(_)
            | CheckpointError::Storage(StorageError::Short { .. }) => Self::check_with_hint(&error),
            CheckpointError::Gang(_) | CheckpointError::Ranks { .. } => Self::operational_with_hint(&error),
            CheckpointError::Storage(StorageError::Missing { .. } | StorageError::UnknownScheme { .. }) => {
                Self::user(&error)
            }
            CheckpointError::Storage(StorageError::Link { .. })
            | CheckpointError::Write(WriteError::InUse { .. }) => Self::user(&error),
            CheckpointError::Storage(_) | CheckpointError::Write(_) => Self::operational_with_hint(&error),
            _ => Self::user(&error),
        }
    }
}

impl From<ConformanceError> for Failure {
    fn from(error: ConformanceError) -> Self {
        match &error {
            ConformanceError::Failed { case, source } => {
                Self { hint: source.hint(), ..Self::operational(source) }.about(case)
            }
            _ => Self::check(error.to_string()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", with_one_beginning(&self.message))?;
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {}", with_one_beginning(hint))?;
        }
        Ok(())
    }
}

/// A text without lines that look like another error or hint, which names with
/// line ends could forge.
fn with_one_beginning(text: &str) -> String {
    text.replace("\nhint:", "\n  hint:").replace("\nerror:", "\n  error:")
}
