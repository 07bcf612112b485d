//! What is wrong with extensions.

use std::fmt;

use weightloom_checkpoint::formats::RegisterFormatError;
use weightloom_dtensor::DTensorError;
use weightloom_errors::Hint;
use weightloom_hub::FamilyError;
use weightloom_sway::backend::RegisterBackendError;
use weightloom_sway::probe::RegisterProbeError;
use weightloom_train::extensions::RegisterError;
use weightloom_train::spec::SpecError;

/// Why an extension cannot be registered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RegistryError {
    #[error(transparent)]
    Family(#[from] FamilyError),
    #[error("cannot add the arch `{arch}` to model family `{family}`: its configuration is {found}")]
    ArchConfig { family: String, arch: String, found: String },
    #[error("cannot register cards: {problem}")]
    Cards { problem: String },
    #[error("cannot register the model spec: {0}")]
    Spec(#[from] SpecError),
    #[error("cannot register the operation: {0}")]
    Operation(#[from] DTensorError),
    #[error(transparent)]
    Format(#[from] RegisterFormatError),
    #[error(transparent)]
    Training(#[from] RegisterError),
    #[error(transparent)]
    Probe(#[from] RegisterProbeError),
    #[error(transparent)]
    Backend(#[from] RegisterBackendError),
    #[error("cannot register the {what} `{extension}`: it panicked: {message}")]
    Panicked { what: &'static str, extension: &'static str, message: String },
}

impl Hint for RegistryError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Family(error) => error.hint(),
            Self::ArchConfig { .. } => Some("pass a map, as in `config.json`".to_owned()),
            Self::Cards { .. } | Self::Panicked { .. } => None,
            Self::Spec(error) => error.hint(),
            Self::Operation(error) => error.hint(),
            Self::Format(error) => error.hint(),
            Self::Training(error) => error.hint(),
            Self::Probe(error) => error.hint(),
            Self::Backend(error) => error.hint(),
        }
    }
}

/// Everything that could not be registered.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct RegistryErrors {
    pub errors: Vec<RegistryError>,
}

impl fmt::Display for RegistryErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.errors.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for RegistryErrors {}

impl Hint for RegistryErrors {
    fn hint(&self) -> Option<String> {
        // Each hint belongs to one error.
        match self.errors.as_slice() {
            [error] => error.hint(),
            _ => None,
        }
    }
}
