//! Formats: each parses files into an [`Index`] without reading tensor data.

pub mod consolidated;
pub mod dcp;
pub mod pickle;
pub mod safetensors;
pub mod torch;
pub mod zip;

mod window;

use std::path::Path;
use std::sync::Arc;

use shardloom_layout::Hint;

use crate::error::CheckpointError;
use crate::index::Index;
use crate::storage::{LocalStorage, Storage, StorageError};
use consolidated::ConsolidatedError;
use dcp::DcpError;
use pickle::PickleError;
use safetensors::SafetensorsError;
use torch::TorchError;
use zip::ZipError;

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Of a safetensors file or its index.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// Of a folder of consolidated files.
    #[error(transparent)]
    Consolidated(#[from] ConsolidatedError),
    /// Of a distributed checkpoint.
    #[error(transparent)]
    Dcp(#[from] DcpError),
    /// Of a pickle.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// Of a file of `torch.save`.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// Of a zip archive.
    #[error(transparent)]
    Zip(#[from] ZipError),
}

impl Hint for FormatError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Safetensors(error) => error.hint(),
            Self::Consolidated(error) => error.hint(),
            Self::Dcp(error) => error.hint(),
            Self::Pickle(error) => error.hint(),
            Self::Torch(error) => error.hint(),
            Self::Zip(error) => error.hint(),
        }
    }
}

/// A checkpoint that can be read: what it holds, and the files that hold it.
#[derive(Clone)]
pub struct Source {
    /// What it holds.
    pub index: Arc<Index>,
    /// The place of its files.
    pub storage: Arc<dyn Storage>,
}

impl Source {
    /// Opens a file or a folder on a filesystem, whatever its format.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => StorageError::Missing {
                file: path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
                location: format!("`{}`", path.parent().unwrap_or(Path::new("")).display()),
            },
            _ => StorageError::io("open", path.display().to_string(), &error),
        })?;
        if metadata.is_dir() {
            return Self::open_folder(Arc::new(LocalStorage::new(path)));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Self::open_file(Arc::new(LocalStorage::new(folder)), &name)
    }

    /// Opens one file of a place.
    pub fn open_file(storage: Arc<dyn Storage>, name: &str) -> Result<Self, CheckpointError> {
        let index = match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("safetensors") => safetensors::read_file(&*storage, name)?,
            Some("pt" | "pth" | "bin") => torch::read_file(&*storage, name)?,
            _ => return Err(CheckpointError::UnknownFormat { location: format!("`{name}`") }),
        };
        Ok(Self { index: Arc::new(index), storage })
    }

    /// Opens a place as a whole.
    pub fn open_folder(storage: Arc<dyn Storage>) -> Result<Self, CheckpointError> {
        let files = storage.list()?;
        let has = |name: &str| files.iter().any(|file| file.name == name);
        let (descriptions, shards) = (dcp::descriptions(&files), dcp::shards(&files));
        let index = if !descriptions.is_empty() {
            dcp::read_folder(&*storage, &descriptions)?
        } else if !shards.is_empty() {
            dcp::read_sharded(&*storage, &shards)?
        } else if files.iter().any(|file| file.name.ends_with(".safetensors")) {
            safetensors::read_folder(&*storage, &files)?
        } else if has(consolidated::FIRST_FILE) {
            consolidated::read_folder(&*storage, &files)?
        } else if has(torch::INDEX_FILE) || has(torch::MODEL_FILE) {
            torch::read_folder(&*storage, &files)?
        } else {
            return Err(CheckpointError::UnknownFormat { location: storage.location() });
        };
        Ok(Self { index: Arc::new(index), storage })
    }
}
