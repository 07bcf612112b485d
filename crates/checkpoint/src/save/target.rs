//! Where a checkpoint is saved, and in which format.

use std::path::PathBuf;
use std::sync::Arc;

use weightloom_errors::Hint;

use super::file_plan::MAX_HEADER;
use crate::storage::Storage;
#[cfg(feature = "object-store")]
use crate::storage::{Address, ObjectOptions, ObjectStorage, StorageError};

/// Where a checkpoint is saved.
#[derive(Clone)]
pub enum Target {
    /// A folder that does not exist yet, on a file system that all ranks share.
    Folder(PathBuf),
    /// A prefix in an object store, or any other [`Storage`].
    Objects(Arc<dyn Storage>),
}

impl Target {
    /// The target at a path or URL: `runs/step_100`, `s3://bucket/step_100`.
    #[cfg(feature = "object-store")]
    pub fn parse(location: &str) -> Result<Self, StorageError> {
        match Address::parse(location)? {
            Address::Local { path } => Ok(Self::Folder(PathBuf::from(path))),
            Address::Remote(remote) => {
                let storage = ObjectStorage::at(&remote, ObjectOptions::default())?;
                Ok(Self::Objects(Arc::new(storage)))
            }
        }
    }
}

/// Format of a saved checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SaveFormat {
    /// A Hugging Face folder with a manifest: every byte can be verified, and
    /// training can resume. With an `adapter_config.json` among its assets it
    /// is an adapter folder that PEFT reads too.
    #[default]
    Native,
    /// A plain Hugging Face folder.
    HuggingFace,
    /// A folder that `torch.distributed.checkpoint.load` reads.
    Dcp,
    /// An adapter folder that PEFT reads. Its `adapter_config.json` is one of
    /// the assets.
    Peft,
}

/// Why a checkpoint cannot be saved to a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TargetError {
    #[error("`{path}` exists already")]
    Exists { path: String },
    #[error("cannot save an asset as `{name}`: the name is taken or leads out of the folder")]
    AssetName { name: String },
    #[error("cannot save a tensor as `{name}`: safetensors reserves the name")]
    TensorName { name: String },
    #[error("cannot write `{file}`: its header takes {length} bytes, and readers accept {MAX_HEADER}")]
    Header { file: String, length: usize },
    #[error("cannot save planner data as {format:?}: the format has no place for them")]
    PlannerData { format: SaveFormat },
    #[error("`{path}` does not name a new folder")]
    NoName { path: String },
}

impl Hint for TargetError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Exists { .. } => "choose another name, or remove it first",
            Self::AssetName { .. } => "rename the asset",
            Self::TensorName { .. } => "rename the tensor",
            Self::Header { .. } => "choose a smaller shard size",
            Self::PlannerData { .. } => "save as `SaveFormat::Native`, or with a planner without data",
            Self::NoName { .. } => "pass a path such as `runs/step_100`",
        };
        Some(hint.to_owned())
    }
}
