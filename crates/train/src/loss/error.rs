//! Errors of losses.

use weightloom_errors::Hint;
use weightloom_nn::NnError;

use crate::extensions::UnknownName;

/// Why a loss cannot be built or computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LossError {
    #[error("`train.loss.kind`: {0}")]
    Unknown(#[from] UnknownName),
    #[error("invalid `train.loss.options` of `{loss}`: {problem}")]
    Options { loss: String, problem: String },
    #[error("cannot use the loss `{loss}`: {problem}")]
    Unusable { loss: String, problem: String },
    #[error(transparent)]
    Nn(#[from] NnError),
}

impl Hint for LossError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown(error) => error.hint(),
            Self::Nn(error) => error.hint(),
            Self::Options { .. } | Self::Unusable { .. } => None,
        }
    }
}
