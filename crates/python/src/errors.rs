//! Errors as Python exceptions, with the same text and hint as on the command line.

use pyo3::prelude::*;
use weightloom::checkpoint::{CheckpointError, StorageError};
use weightloom::cli::{CallError, CallErrorKind};
use weightloom::gang::GangError;
use weightloom::hub::HubError;

/// The name of an exception class in `weightloom._errors`.
fn class(kind: CallErrorKind) -> &'static str {
    match kind {
        CallErrorKind::Check => "CheckFailed",
        CallErrorKind::User => "UserError",
        CallErrorKind::Operational => "OperationalError",
    }
}

/// Makes an exception of a class in `weightloom._errors`.
pub(crate) fn exception(py: Python<'_>, class: &str, message: &str, hint: Option<&str>) -> PyErr {
    let made = py
        .import("weightloom._errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((message, hint)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// An error that becomes an exception once it reaches Python.
pub(crate) struct Raise(CallError);

impl From<CallError> for Raise {
    fn from(error: CallError) -> Self {
        Self(error)
    }
}

impl From<CheckpointError> for Raise {
    fn from(error: CheckpointError) -> Self {
        Self(error.into())
    }
}

impl From<StorageError> for Raise {
    fn from(error: StorageError) -> Self {
        Self(CheckpointError::from(error).into())
    }
}

impl From<GangError> for Raise {
    fn from(error: GangError) -> Self {
        Self(CheckpointError::from(error).into())
    }
}

impl From<HubError> for Raise {
    fn from(error: HubError) -> Self {
        Self(error.into())
    }
}

impl From<Raise> for PyErr {
    fn from(Raise(error): Raise) -> Self {
        Python::attach(|py| exception(py, class(error.kind), &error.message, error.hint.as_deref()))
    }
}

/// A wrong argument, with what would fix it.
pub(crate) fn wrong(message: impl Into<String>, hint: impl Into<String>) -> PyErr {
    let (kind, hint) = (CallErrorKind::User, Some(hint.into()));
    Raise(CallError { kind, message: message.into(), hint }).into()
}
