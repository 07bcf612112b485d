//! Formats: each parses files into an [`Index`] without reading tensor data.

pub mod consolidated;
pub mod dcp;
pub mod gguf;
pub mod mlx;
pub mod native;
pub mod npz;
pub mod peft;
pub mod pickle;
pub mod safetensors;
pub mod torch;
pub mod zip;

mod registry;
mod window;

use std::path::Path;
use std::sync::Arc;

use weightloom_errors::Hint;

use crate::error::CheckpointError;
use crate::fingerprint::{ElementSum, Fingerprint};
use crate::index::{Blob, BytesLocation, Index, StoredFile};
use crate::keys::KeyMap;
use crate::manifest::{MANIFEST_FILE, Manifest, ManifestError, digest_of};
use crate::storage::{Address, LocalStorage, Remote, Storage, StorageError};
use gguf::GgufError;
use mlx::MlxError;
use npz::NpzError;
use peft::PeftError;
use safetensors::SafetensorsError;
use zip::ZipError;

/// Extensions of files that are checkpoints by themselves.
const FILE_EXTENSIONS: [&str; 7] = ["safetensors", "gguf", "pt", "pth", "ckpt", "bin", "npz"];
use consolidated::ConsolidatedError;
use dcp::DcpError;
use pickle::PickleError;
use torch::TorchError;

pub use registry::{CheckpointFiles, CheckpointFormat, Formats, RegisterFormatError};

/// Why a file cannot be parsed, by format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FormatError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Mlx(#[from] MlxError),
    #[error(transparent)]
    Npz(#[from] NpzError),
    #[error(transparent)]
    Peft(#[from] PeftError),
    #[error(transparent)]
    Consolidated(#[from] ConsolidatedError),
    #[error(transparent)]
    Dcp(#[from] DcpError),
    #[error(transparent)]
    Pickle(#[from] PickleError),
    #[error(transparent)]
    Torch(#[from] TorchError),
    #[error(transparent)]
    Zip(#[from] ZipError),
    /// A format that is not built in.
    #[error("as `{format}`: {problem}")]
    Registered { format: &'static str, problem: String },
}

impl Hint for FormatError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Manifest(error) => error.hint(),
            Self::Safetensors(error) => error.hint(),
            Self::Gguf(error) => error.hint(),
            Self::Mlx(error) => error.hint(),
            Self::Npz(error) => error.hint(),
            Self::Peft(error) => error.hint(),
            Self::Consolidated(error) => error.hint(),
            Self::Dcp(error) => error.hint(),
            Self::Pickle(error) => error.hint(),
            Self::Torch(error) => error.hint(),
            Self::Zip(error) => error.hint(),
            Self::Registered { .. } => None,
        }
    }
}

/// A checkpoint to read: its index and the storage of its files.
#[derive(Clone)]
pub struct Source {
    /// Its tensors and where they are.
    pub index: Arc<Index>,
    /// The storage of its files.
    pub storage: Arc<dyn Storage>,
    /// The manifest of a native checkpoint.
    pub manifest: Option<Arc<Manifest>>,
    /// Whether it is a single file or a folder with assets.
    pub scope: Scope,
}

/// The extent of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One file; other files of the folder are ignored.
    File,
    /// A folder with all its files.
    Folder,
}

impl Source {
    /// A checkpoint with a known index.
    pub fn new(index: Index, storage: Arc<dyn Storage>) -> Self {
        Self { index: Arc::new(index), storage, manifest: None, scope: Scope::Folder }
    }

    /// The tensors renamed and transformed. The result has no checksums, which
    /// belong to the original names.
    pub fn with_keys(&self, keys: &KeyMap) -> Result<Self, CheckpointError> {
        let renamed = Self::new(keys.apply(&self.index)?, Arc::clone(&self.storage));
        Ok(Self { scope: self.scope, ..renamed })
    }

    /// Opens a file or a folder on a filesystem, whatever its format.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => StorageError::Missing {
                file: path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
                location: LocalStorage::new(path.parent().unwrap_or(Path::new(""))).location(),
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

    /// Opens a URL (`s3://`, `gs://`, `az://`, `https://`, `http://`,
    /// `file://`) or a path: a file if it has the extension of a checkpoint
    /// file, otherwise a folder.
    pub fn open_url(url: &str) -> Result<Self, CheckpointError> {
        match Address::parse(url)? {
            Address::Local { path } => Self::open(path),
            Address::Remote(mut remote) => match remote.take_file(&FILE_EXTENSIONS) {
                Some(file) => Self::open_file(open_remote(&remote)?, &file),
                None => Self::open_folder(open_remote(&remote)?),
            },
        }
    }

    /// Opens one file of a storage.
    pub fn open_file(storage: Arc<dyn Storage>, name: &str) -> Result<Self, CheckpointError> {
        refuse_unfinished(&*storage, &[])?;
        let index = match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("safetensors") => safetensors::read_file(&*storage, name)?,
            Some("gguf") => gguf::read_file(&*storage, name)?,
            Some("npz") => npz::read_file(&*storage, name)?,
            Some("pt" | "pth" | "ckpt" | "bin") => torch::read_file(&*storage, name)?,
            _ => return Err(CheckpointError::UnknownFormat { location: format!("`{name}`") }),
        };
        Ok(Self { scope: Scope::File, ..Self::new(index, storage) })
    }

    /// Opens all files of a storage as one checkpoint.
    pub fn open_folder(storage: Arc<dyn Storage>) -> Result<Self, CheckpointError> {
        let files = storage.list()?;
        let has = |name: &str| files.iter().any(|file| file.name == name);
        refuse_unfinished(&*storage, &files)?;
        if has(MANIFEST_FILE) {
            let manifest = Manifest::read(&*storage)?;
            let index = Arc::new(native::index(&*storage, &manifest)?);
            return Ok(Self { index, storage, manifest: Some(Arc::new(manifest)), scope: Scope::Folder });
        }
        let (descriptions, shards) = (dcp::descriptions(&files), dcp::shards(&files));
        let index = if !descriptions.is_empty() {
            dcp::read_folder(&*storage, &descriptions)?
        } else if !shards.is_empty() {
            dcp::read_sharded(&*storage, &shards)?
        } else if let Some(index) = peft::read_folder(&*storage, &files)? {
            index
        } else if files.iter().any(|file| file.name.ends_with(".safetensors")) {
            mlx::join_quantised(&*storage, safetensors::read_folder(&*storage, &files)?)?
        } else if files.iter().any(|file| file.name == "weights.npz") {
            // MLX before it wrote safetensors.
            mlx::join_quantised(&*storage, npz::read_file(&*storage, "weights.npz")?)?
        } else if let Some(index) = gguf::read_folder(&*storage, &files)? {
            index
        } else if has(consolidated::FIRST_FILE) {
            consolidated::read_folder(&*storage, &files)?
        } else if has(torch::INDEX_FILE) || has(torch::MODEL_FILE) {
            torch::read_folder(&*storage, &files)?
        } else {
            return Err(CheckpointError::UnknownFormat { location: storage.location() });
        };
        Ok(Self::new(index, storage))
    }

    /// The adapter in a training checkpoint of one; `None` for any other
    /// checkpoint.
    pub fn as_adapter(&self) -> Result<Option<Self>, CheckpointError> {
        if self.manifest.is_none() {
            return Ok(None);
        }
        let index = peft::read_folder(&*self.storage, &self.storage.list()?)?;
        Ok(index.map(|index| Self::new(index, Arc::clone(&self.storage))))
    }

    /// Compares bytes with their checksum, if the checkpoint has one.
    pub(crate) fn check_bytes(&self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let Some(said) = self.manifest.as_ref().and_then(|manifest| manifest.tensors.get(name)) else {
            return Ok(());
        };
        let sum = ElementSum::of_run(1, 0, bytes);
        if Fingerprint::of_tensor(said.dtype, &said.shape, sum) != said.fingerprint {
            return Err(CheckpointError::DamagedBytes { name: name.to_owned() });
        }
        Ok(())
    }

    /// Reads an entry that is not a tensor and compares it with its checksum,
    /// if it has one. Values that torch pickled are returned as JSON.
    pub fn read_bytes(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(place) = self.index.bytes_at(name) else { return Ok(None) };
        let bytes = match place {
            BytesLocation::Text(json) => json.as_bytes().to_vec(),
            BytesLocation::Raw(blob) => self.read_blob(name, blob)?,
            BytesLocation::Pickled(blob) => {
                let value = dcp::read_value(name, &self.read_blob(name, blob)?)?;
                value.to_string().into_bytes()
            }
        };
        Ok(Some(bytes))
    }

    /// Reads bytes without decoding.
    fn read_blob(&self, name: &str, blob: Blob) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; blob.length as usize];
        if blob.length > 0 {
            self.storage.read_at(&self.index.file(blob.file).name, blob.offset, &mut bytes)?;
        }
        self.check_bytes(name, &bytes)?;
        Ok(bytes)
    }
    /// Reads an asset such as `config.json` and compares it with its checksum.
    /// `None` if the manifest does not list it.
    pub fn read_asset(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(said) = self.manifest.as_ref().and_then(|manifest| manifest.assets.get(name)) else {
            return Ok(None);
        };
        let bytes = self.storage.read_all(name, said.length)?;
        if digest_of(&bytes) != said.digest {
            return Err(CheckpointError::DamagedBytes { name: name.to_owned() });
        }
        Ok(Some(bytes))
    }
}

/// Refuses the remains of an interrupted save: a folder under its temporary
/// name, or per-rank files without a manifest.
fn refuse_unfinished(storage: &dyn Storage, files: &[StoredFile]) -> Result<(), CheckpointError> {
    let name = storage.folder().and_then(Path::file_name).map(|name| name.to_string_lossy());
    let partial = name.is_some_and(|name| name.starts_with('.') && name.ends_with(".partial"));
    let parts = files.iter().any(|file| native::is_chunks_file(&file.name))
        && !files.iter().any(|file| file.name == MANIFEST_FILE);
    if partial || parts {
        return Err(CheckpointError::Unfinished { location: storage.location() });
    }
    Ok(())
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
