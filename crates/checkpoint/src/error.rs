//! Why a checkpoint cannot be used.

use weightloom_errors::Hint;
use weightloom_files::WriteError;
use weightloom_gang::GangError;

use crate::formats::FormatError;
use crate::index::{Format, IndexError};
use crate::keys::KeyError;
use crate::model_part::ModelPartError;
use crate::plan::{LoadPlanError, PlanError, PlannerError};
use crate::read::ReadRequestError;
use crate::save::TargetError;
use crate::state::DeviceReadError;
use crate::storage::StorageError;
use crate::tree::AmbiguousPath;
use crate::verify::Damage;

/// Why a checkpoint cannot be read, written or trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CheckpointError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("cannot read `{file}`: {problem}")]
    Format { file: String, problem: FormatError },
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error("cannot find a checkpoint of a supported format in {location}")]
    UnknownFormat { location: String },
    #[error("the checkpoint in {location} is not complete")]
    Unfinished { location: String },
    #[error(transparent)]
    ReadRequest(#[from] ReadRequestError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    LoadPlan(#[from] LoadPlanError),
    #[error(transparent)]
    Planner(#[from] PlannerError),
    #[error(transparent)]
    AmbiguousPath(#[from] AmbiguousPath),
    #[error("cannot nest `{name}`: its path is too long, or leads to another entry")]
    Path { name: String },
    #[error("{0}")]
    Damaged(Damage),
    #[error("`{name}` is damaged: its checksum does not match")]
    DamagedBytes { name: String },
    #[error(transparent)]
    Keys(#[from] KeyError),
    #[error(transparent)]
    ModelPart(#[from] ModelPartError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Write(WriteError),
    #[error(transparent)]
    Device(#[from] DeviceReadError),
    #[error("cannot redistribute `{name}` before writing: {message}")]
    Redistribute { name: String, message: String },
    #[error("cannot commit the checkpoint: not every element of `{tensor}` was written exactly once")]
    NotWrittenOnce { tensor: String },
    #[error("{}", failures.iter().map(|(rank, text)| format!("rank {rank}: {text}")).collect::<Vec<_>>().join("; "))]
    Ranks { failures: Vec<(usize, String)> },
    /// Its observer asked for it.
    #[error("cancelled")]
    Cancelled,
    #[error("a {format} checkpoint is not an adapter")]
    NoAdapter { format: Format },
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl CheckpointError {
    /// A file that is not what its format says.
    pub(crate) fn format(file: &str, problem: impl Into<FormatError>) -> Self {
        Self::Format { file: file.to_owned(), problem: problem.into() }
    }
}

impl From<WriteError> for CheckpointError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::File(error) => Self::Storage(error.into()),
            WriteError::Exists { path } => Self::Target(TargetError::Exists { path }),
            other => Self::Write(other),
        }
    }
}

impl Hint for CheckpointError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Storage(error) => error.hint(),
            Self::Format { problem, .. } => problem.hint(),
            Self::Index(IndexError::PastEnd { .. }) => {
                Some("copy or download the file again; it is truncated".to_owned())
            }
            Self::Index(IndexError::Expansion { .. } | IndexError::Repeated { .. }) => Some(
                "save contiguous copies (`tensor.contiguous()` in torch), if you trust the file".to_owned(),
            ),
            Self::UnknownFormat { .. } => Some(
                "pass a .safetensors, .gguf, .pt, .pth, .bin or .npz file, or a folder with safetensors, DCP or \
                 consolidated.NN.pth files"
                    .to_owned(),
            ),
            Self::Unfinished { .. } => Some(
                "open an older checkpoint, or save it again; the save was interrupted or is still running".to_owned(),
            ),
            Self::Gang(error) => error.hint(),
            Self::Plan(error) => error.hint(),
            Self::Planner(error) => error.hint(),
            Self::AmbiguousPath(_) => Some("rename one of them".to_owned()),
            Self::Target(error) => error.hint(),
            Self::Write(error) => error.hint(),
            Self::Keys(error) => error.hint(),
            Self::ModelPart(error) => error.hint(),
            Self::NotWrittenOnce { .. } => {
                Some("use planners with the same settings on all ranks".to_owned())
            }
            Self::NoAdapter { .. } => {
                Some("pass a folder with adapter_config.json, written by PEFT or MLX".to_owned())
            }
            Self::LoadPlan(LoadPlanError::Plan(error)) => error.hint(),
            Self::LoadPlan(_) => None,
            Self::Cancelled => None,
            Self::Damaged(_) | Self::DamagedBytes { .. } => {
                Some("copy the checkpoint again, or load an older one".to_owned())
            }
            Self::Index(_)
            | Self::Path { .. }
            | Self::ReadRequest(_)
            | Self::Redistribute { .. }
            | Self::Device(_)
            | Self::Ranks { .. } => None,
        }
    }
}
