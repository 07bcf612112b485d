//! Formats: each parses files into an [`Index`] without reading tensor data.

pub mod safetensors;

use std::path::Path;
use std::sync::Arc;

use shardloom_layout::Hint;

use crate::error::CheckpointError;
use crate::index::Index;
use crate::storage::{Address, LocalStorage, Remote, Storage, StorageError};
use safetensors::SafetensorsError;

/// How the names of files end that are checkpoints of their own.
const FILE_EXTENSIONS: [&str; 7] = ["safetensors", "gguf", "pt", "pth", "ckpt", "bin", "npz"];

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Of a safetensors file or its index.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
}

impl Hint for FormatError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Safetensors(error) => error.hint(),
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

    /// Opens what a URL names: `s3://`, `gs://`, `az://`, `https://`,
    /// `http://`, `file://`, or a plain path. If it ends like the name of a
    /// checkpoint file, that file; otherwise the place as a whole.
    pub fn open_url(url: &str) -> Result<Self, CheckpointError> {
        match Address::parse(url)? {
            Address::Local { path } => Self::open(path),
            Address::Remote(mut remote) => match remote.take_file(&FILE_EXTENSIONS) {
                Some(file) => Self::open_file(open_remote(&remote)?, &file),
                None => Self::open_folder(open_remote(&remote)?),
            },
        }
    }

    /// Opens one file of a place.
    pub fn open_file(storage: Arc<dyn Storage>, name: &str) -> Result<Self, CheckpointError> {
        let index = match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("safetensors") => safetensors::read_file(&*storage, name)?,
            _ => return Err(CheckpointError::UnknownFormat { location: format!("`{name}`") }),
        };
        Ok(Self { index: Arc::new(index), storage })
    }

    /// Opens a place as a whole.
    pub fn open_folder(storage: Arc<dyn Storage>) -> Result<Self, CheckpointError> {
        let files = storage.list()?;
        let index = if files.iter().any(|file| file.name.ends_with(".safetensors")) {
            safetensors::read_folder(&*storage, &files)?
        } else {
            return Err(CheckpointError::UnknownFormat { location: storage.location() });
        };
        Ok(Self { index: Arc::new(index), storage })
    }
}

#[cfg(feature = "object-store")]
fn open_remote(remote: &Remote) -> Result<Arc<dyn Storage>, StorageError> {
    use crate::storage::{ObjectOptions, ObjectStorage};
    Ok(Arc::new(ObjectStorage::at(remote, ObjectOptions::default())?))
}

#[cfg(not(feature = "object-store"))]
fn open_remote(remote: &Remote) -> Result<Arc<dyn Storage>, StorageError> {
    Err(StorageError::UnknownScheme { url: remote.shown() })
}
