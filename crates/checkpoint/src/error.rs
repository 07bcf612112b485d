//! Why a checkpoint cannot be used.

use weightloom_errors::Hint;
use weightloom_gang::GangError;

use crate::formats::FormatError;
use crate::index::{Format, IndexError};
use crate::keys::KeyError;
use crate::plan::{LoadPlanError, PlanError};
use crate::read::ReadRequestError;
use crate::save::TargetError;
use crate::storage::StorageError;
use crate::verify::Damage;

/// Why a checkpoint cannot be read, written or trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CheckpointError {
    /// A file could not be read or written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file is not what its format says.
    #[error("`{file}` cannot be used: {source}")]
    Format { file: String, source: FormatError },
    /// The parts of a checkpoint do not fit together.
    #[error("the checkpoint is not whole: {0}")]
    Index(#[from] IndexError),
    /// No format that we know.
    #[error("{location} holds no checkpoint of a known format")]
    UnknownFormat { location: String },
    /// A save that did not come to its end.
    #[error("{location} holds a save that is not finished")]
    Unfinished { location: String },
    /// Something was asked that the checkpoint cannot answer.
    #[error(transparent)]
    ReadRequest(#[from] ReadRequestError),
    /// A save or a load could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A load could not be planned.
    #[error(transparent)]
    LoadPlan(#[from] LoadPlanError),
    /// What was read is not what was saved.
    #[error("{0}")]
    Damaged(Damage),
    /// Bytes that are not those that were saved.
    #[error("`{name}` is not as it was saved")]
    DamagedBytes { name: String },
    /// Names cannot be turned into others.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// A checkpoint cannot be saved to a place.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Ranks could not exchange a tensor before writing it.
    #[error("`{name}` could not be exchanged between ranks: {message}")]
    Redistribute { name: String, message: String },
    /// Parts of a tensor were written by nobody, or twice.
    #[error("not every element of `{tensor}` was written exactly once, so nothing was saved")]
    NotWrittenOnce { tensor: String },
    /// Other ranks failed.
    #[error("{}", failures.iter().map(|(rank, text)| format!("rank {rank}: {text}")).collect::<Vec<_>>().join("; "))]
    Ranks { failures: Vec<(usize, String)> },
    /// Something else than an adapter cannot become one.
    #[error("a {format} checkpoint is no adapter")]
    NoAdapter { format: Format },
    /// Ranks could not exchange what they must.
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl CheckpointError {
    /// A file that is not what its format says.
    pub(crate) fn format(file: &str, source: impl Into<FormatError>) -> Self {
        Self::Format { file: file.to_owned(), source: source.into() }
    }
}

impl Hint for CheckpointError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Storage(error) => error.hint(),
            Self::Format { source, .. } => source.hint(),
            Self::Index(IndexError::PastEnd { .. }) => {
                Some("the file was cut off; copy or download it again".to_owned())
            }
            Self::UnknownFormat { .. } => Some(
                "give a .safetensors, .gguf, .pt, .pth, .bin or .npz file, or a folder with safetensors, DCP or \
                 consolidated.NN.pth files"
                    .to_owned(),
            ),
            Self::Unfinished { .. } => Some(
                "it was cut short or is still under way; open an older checkpoint, or save it again".to_owned(),
            ),
            Self::Gang(error) => error.hint(),
            Self::Plan(error) => error.hint(),
            Self::Target(error) => error.hint(),
            Self::Keys(error) => error.hint(),
            Self::NotWrittenOnce { .. } => {
                Some("give all ranks planners with the same settings".to_owned())
            }
            Self::NoAdapter { .. } => {
                Some("give a folder with adapter_config.json, written by PEFT or MLX".to_owned())
            }
            Self::LoadPlan(LoadPlanError::Plan(error)) => error.hint(),
            Self::LoadPlan(_) => None,
            Self::Damaged(_) | Self::DamagedBytes { .. } => {
                Some("copy the checkpoint again, or load an older one".to_owned())
            }
            Self::Index(_) | Self::ReadRequest(_) | Self::Redistribute { .. } | Self::Ranks { .. } => None,
        }
    }
}
