//! How strictly the tensors of a checkpoint must match those of a model.

use serde::{Deserialize, Serialize};

use crate::error::CheckpointMismatch;

/// How strictly the tensors of a checkpoint must match those of a model.
///
/// Whatever is accepted is listed in [`LoadedModel::mismatch`](crate::LoadedModel).
/// A checkpoint without any tensor of the model is always an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strictness {
    /// All of them, by name and shape.
    #[default]
    Strict,
    /// Missing tensors are initialized as in a new model, and unexpected ones are
    /// ignored. Tensors with another shape are an error.
    NonStrict,
    /// Like `NonStrict`, and tensors with another shape are initialized, too.
    IgnoreMismatchedSizes,
}

impl Strictness {
    /// Whether a model can be loaded in spite of differences. `wanted` is the number
    /// of its parameters.
    pub(crate) fn accepts(self, mismatch: &CheckpointMismatch, wanted: usize) -> bool {
        let fits = match self {
            Self::Strict => mismatch.is_empty(),
            Self::NonStrict => mismatch.wrong_shape.is_empty(),
            Self::IgnoreMismatchedSizes => true,
        };
        fits && (mismatch.is_empty() || mismatch.initialized().count() < wanted)
    }
}
