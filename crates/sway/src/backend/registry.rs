//! The kinds of backends that suites may name.

use std::sync::Arc;

use serde_json::{Map, Value};
use thiserror::Error;
use weightloom_errors::{Hint, Panicked, caught, did_you_mean, nearest};

use super::Backend;
use super::build::BuildError;
use super::guarded::Guarded;
use super::kind::{AnyBackendKind, BackendKind, BackendRequest};
use super::standard::standard;
use crate::error::BackendError;
use crate::extensions::section_of;
use crate::probe::FieldProblem;

/// The kinds of backends that suites may name, with those of your own crate.
///
/// A value, not a global list: a caller that reads a suite or builds a backend
/// passes it in.
#[derive(Clone, Debug)]
pub struct Backends {
    kinds: Vec<RegisteredBackend>,
}

/// A kind of backend that suites may name.
#[derive(Clone, Debug)]
pub struct RegisteredBackend(Arc<dyn AnyBackendKind>);

impl Default for Backends {
    fn default() -> Self {
        Self::standard()
    }
}

impl Backends {
    /// The built-in kinds.
    pub fn standard() -> Self {
        Self { kinds: standard().into_iter().map(RegisteredBackend).collect() }
    }

    /// The same kinds and another one.
    pub fn with(mut self, kind: impl BackendKind) -> Result<Self, RegisterBackendError> {
        self.register(kind)?;
        Ok(self)
    }

    /// Adds a kind. What is wrong with it is an error here rather than in the
    /// suites that name it.
    pub fn register(&mut self, kind: impl BackendKind) -> Result<(), RegisterBackendError> {
        let kind = RegisteredBackend(Arc::new(kind));
        let name = kind.name();
        let fault = |problem| RegisterBackendError { kind: name.to_owned(), problem };
        let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        if name.is_empty() || !name.chars().all(fits) {
            return Err(fault(RegisterBackendProblem::Name));
        }
        if self.find(name).is_ok() {
            return Err(fault(RegisterBackendProblem::Taken));
        }
        let options = |message| fault(RegisterBackendProblem::Options { message });
        let schema = caught(|| kind.schema()).map_err(|panic| options(panic.to_string()))?;
        section_of(&schema).map_err(|error| options(error.0))?;
        self.kinds.push(kind);
        Ok(())
    }

    /// All kinds: the built-in ones, then the others as they were added.
    pub fn kinds(&self) -> &[RegisteredBackend] {
        &self.kinds
    }

    /// Finds a kind by name.
    pub fn find(&self, kind: &str) -> Result<&RegisteredBackend, UnknownBackend> {
        let known = || self.kinds.iter().map(RegisteredBackend::name);
        self.kinds.iter().find(|known| known.name() == kind).ok_or_else(|| UnknownBackend {
            kind: kind.to_owned(),
            near: nearest(kind, known()).map(str::to_owned),
            known: known().map(str::to_owned).collect(),
        })
    }
}

impl RegisteredBackend {
    /// The name of the kind in suite files.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// What it is, in a few words.
    pub fn summary(&self) -> &'static str {
        self.0.summary()
    }

    /// The JSON schema of the keys under `options`.
    pub fn schema(&self) -> Value {
        self.0.schema()
    }

    /// Options whose values make no backend.
    pub fn problems(&self, options: &Map<String, Value>) -> Vec<FieldProblem> {
        caught(|| self.0.problems(options))
            .unwrap_or_else(|panic| vec![FieldProblem { field: String::new(), problem: panic.to_string() }])
    }

    /// Builds the backend of a model. A kind that panics is an error, also later,
    /// when its backend does.
    pub fn build(
        &self,
        options: &Map<String, Value>,
        request: &BackendRequest<'_>,
    ) -> Result<Box<dyn Backend>, BuildError> {
        let failed = |Panicked { message }: Panicked| BackendError {
            backend: self.name().to_owned(),
            message: format!("it panicked: {message}"),
            hint: None,
        };
        let built = caught(|| self.0.build(options, request)).map_err(failed)??;
        Ok(Box::new(Guarded(built)))
    }
}

/// A kind of backend that is not registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown kind of backend `{kind}`")]
#[allow(missing_docs)]
pub struct UnknownBackend {
    pub kind: String,
    pub near: Option<String>,
    pub known: Vec<String>,
}

impl Hint for UnknownBackend {
    fn hint(&self) -> Option<String> {
        let list = || format!("use one of {}", self.known.join(", "));
        Some(did_you_mean(self.near.as_deref()).unwrap_or_else(list))
    }
}

/// Why a kind of backend cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot register the kind of backend `{kind}`: {problem}")]
#[allow(missing_docs)]
pub struct RegisterBackendError {
    pub kind: String,
    pub problem: RegisterBackendProblem,
}

/// What is wrong with a kind of backend.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RegisterBackendProblem {
    #[error("its name is not in lower_case")]
    Name,
    #[error("another kind has this name")]
    Taken,
    #[error("unsupported schema of its options: {message}")]
    Options { message: String },
}

impl Hint for RegisterBackendError {
    fn hint(&self) -> Option<String> {
        let hint = match &self.problem {
            RegisterBackendProblem::Name => "use lower-case letters, digits and `_`",
            RegisterBackendProblem::Taken => "give it another name",
            RegisterBackendProblem::Options { .. } => {
                "derive `Deserialize` and `JsonSchema`, with #[serde(default, deny_unknown_fields)]"
            }
        };
        Some(hint.to_owned())
    }
}
