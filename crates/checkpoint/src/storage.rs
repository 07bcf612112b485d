//! Storage of a checkpoint's files.

mod address;
mod direct;
mod links;
pub(crate) mod local;
mod mapped;
mod memory;
#[cfg(feature = "object-store")]
mod object;
mod remote_problem;

pub use address::{Address, Remote, percent_decode};
pub use local::LocalStorage;
pub use memory::MemoryStorage;
#[cfg(feature = "object-store")]
pub use object::{ObjectOptions, ObjectStorage};
pub use remote_problem::{RemoteProblem, Service};

use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use weightloom_errors::{FileError, Hint};

use crate::index::StoredFile;

/// A folder, or a prefix in an object store.
///
/// File names are relative to it, with `/` between folders. Implementations
/// refuse names that lead out of it.
pub trait Storage: Send + Sync {
    /// Its location, for messages.
    fn location(&self) -> String;

    /// The files at the top level, sorted by name.
    fn list(&self) -> Result<Vec<StoredFile>, StorageError>;

    /// The length of a file.
    fn length(&self, name: &str) -> Result<u64, StorageError>;

    /// Reads exactly `into.len()` bytes at `offset`.
    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError>;

    /// As [`read_at`](Self::read_at), in a mode that the storage may ignore.
    fn read_with(
        &self,
        mode: ReadMode,
        name: &str,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), StorageError> {
        let _ = mode;
        self.read_at(name, offset, into)
    }

    /// Maps a whole file into memory, if the storage can. The file must not
    /// change while the bytes are in use.
    fn map(&self, name: &str) -> Result<Option<SharedBytes>, StorageError> {
        let _ = name;
        Ok(None)
    }

    /// Writes a whole file atomically.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError>;

    /// Begins a file that is written in pieces and appears once it is finished.
    fn create(&self, name: &str) -> Result<Box<dyn Upload>, StorageError> {
        let _ = name;
        Err(StorageError::Unsupported { action: "write to", location: self.location() })
    }

    /// Removes a file, if it exists.
    fn remove(&self, name: &str) -> Result<(), StorageError>;

    /// The gap in bytes up to which one larger read is cheaper than two.
    fn gap(&self) -> u64;

    /// The folder, if the storage is one.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Refuses a file that is a link to a place outside of the storage, before
    /// it is copied.
    fn check_inside(&self, name: &str) -> Result<(), StorageError> {
        let _ = name;
        Ok(())
    }

    /// Reads a whole file that must not be longer than `limit`.
    fn read_all(&self, name: &str, limit: u64) -> Result<Vec<u8>, StorageError> {
        let length = self.length(name)?;
        if length > limit {
            return Err(StorageError::TooLong { file: name.to_owned(), length, limit });
        }
        let mut bytes = vec![0; length as usize];
        self.read_at(name, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether the file exists.
    fn exists(&self, name: &str) -> Result<bool, StorageError> {
        match self.length(name) {
            Ok(_) => Ok(true),
            Err(StorageError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Bytes with shared ownership.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A file that is being written in bounded memory.
///
/// Dropping it before [`finish`](Self::finish) discards it.
pub trait Upload: Send {
    /// Adds bytes at the end. After an error the file cannot be finished.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError>;

    /// Makes the file visible.
    fn finish(self: Box<Self>) -> Result<(), StorageError>;
}

/// How files of a folder are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Through the page cache. Works well on every file system.
    Cached,
    /// Through a memory map, which saves a system call per short run. Slow on
    /// network file systems, and only for files that do not change.
    Mapped,
    /// Past the page cache (`O_DIRECT`), for files larger than memory. Falls
    /// back to the cache where the file system does not support it.
    Direct,
}

/// Why a file cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum StorageError {
    #[error("cannot find `{file}` in {location}")]
    Missing { file: String, location: String },
    #[error("cannot {action} `{file}`: {message}")]
    Io { action: &'static str, file: String, kind: io::ErrorKind, message: String },
    #[error("`{file}` ends before byte {end}")]
    Short { file: String, end: u64 },
    #[error("cannot read `{file}`: it has {length} bytes, and the limit is {limit}")]
    TooLong { file: String, length: u64, limit: u64 },
    #[error("cannot {action} `{file}`: {fault}{}", detail(message))]
    Remote { action: &'static str, file: String, service: Service, fault: RemoteProblem, message: String },
    #[error("cannot {action} `{file}`, gave up after {attempts} attempts: {fault}{}", detail(message))]
    GaveUp {
        action: &'static str,
        file: String,
        service: Service,
        attempts: u32,
        fault: RemoteProblem,
        message: String,
    },
    #[error("`{file}` changed while it was read")]
    Changed { file: String },
    #[error("cannot read ranges of `{file}`: the server sends whole files only")]
    NoRanges { file: String },
    #[error("cannot {action} {location}")]
    Unsupported { action: &'static str, location: String },
    #[error("unsupported storage URL `{url}`")]
    UnknownScheme { url: String },
    #[error("invalid URL `{url}`: {problem}")]
    Url { url: String, problem: &'static str },
    #[error("unknown setting `{key}` for {location}")]
    UnknownSetting { key: String, location: String },
    #[error("file name `{name}` leads out of the checkpoint")]
    Outside { name: String },
    #[error("cannot copy `{file}` of {location}: it is a link to `{target}`, outside of the folder")]
    Link { file: String, location: String, target: String },
}

impl StorageError {
    pub(crate) fn io(action: &'static str, file: impl Into<String>, error: &io::Error) -> Self {
        Self::Io { action, file: file.into(), kind: error.kind(), message: error.to_string() }
    }
}

impl From<FileError> for StorageError {
    fn from(error: FileError) -> Self {
        let FileError { action, path, kind, message } = error;
        Self::Io { action, file: path, kind, message }
    }
}

impl Hint for StorageError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { .. } => Some("check the path".to_owned()),
            Self::Io { kind: io::ErrorKind::StorageFull, .. } => Some(
                "free some space, or choose another disk; complete checkpoints are untouched".to_owned(),
            ),
            Self::Io { kind: io::ErrorKind::PermissionDenied, .. } => {
                Some("check the owner and the permissions of the folder".to_owned())
            }
            Self::Short { .. } => Some("copy or download the file again; it is truncated".to_owned()),
            Self::Remote { service, fault, .. } | Self::GaveUp { service, fault, .. } => {
                remote_hint(*service, *fault)
            }
            Self::Changed { .. } => {
                Some("wait until the other program has finished writing, then open it again".to_owned())
            }
            Self::NoRanges { .. } => Some("download the file and open it from disk".to_owned()),
            Self::Unsupported { .. } => {
                Some("use S3, Google Cloud Storage, Azure or a folder; web servers are read-only and list no files".to_owned())
            }
            Self::UnknownScheme { .. } if cfg!(feature = "object-store") => {
                Some("use s3://, gs://, az://, https://, http://, file:// or a path".to_owned())
            }
            Self::UnknownScheme { .. } => Some(
                "use a path or file://; for s3://, gs://, az:// and https:// build with the feature `object-store`"
                    .to_owned(),
            ),
            Self::UnknownSetting { .. } => {
                Some("use the names of the service's environment variables".to_owned())
            }
            Self::Link { .. } => {
                Some("remove the link; or, if you trust it, replace it with a copy of the file".to_owned())
            }
            Self::Outside { .. } => {
                Some("get the checkpoint from a source that you trust; it is damaged or malicious".to_owned())
            }
            _ => None,
        }
    }
}

/// The service's message in parentheses, if it has one.
fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

fn remote_hint(service: Service, fault: RemoteProblem) -> Option<String> {
    match fault {
        RemoteProblem::Status(401 | 403) | RemoteProblem::NoCredentials => {
            Some(service.credentials().to_owned())
        }
        RemoteProblem::Status(404) => Some(match service {
            Service::Web => "check the address".to_owned(),
            _ => "check the name of the bucket or container; it must exist".to_owned(),
        }),
        RemoteProblem::Status(301 | 307 | 400) if service == Service::S3 => {
            Some("check the bucket's region, AWS_REGION, and AWS_ENDPOINT_URL".to_owned())
        }
        fault if fault.is_throttling() => Some(
            "the service wants fewer requests; read with less concurrency, or try again later".to_owned(),
        ),
        RemoteProblem::Timeout | RemoteProblem::Unreachable => Some(match service {
            Service::S3 => "check the network, and AWS_ENDPOINT_URL if it is set".to_owned(),
            _ => "check the network and the address".to_owned(),
        }),
        RemoteProblem::Settings => Some(service.credentials().to_owned()),
        RemoteProblem::Status(_) | RemoteProblem::Cut | RemoteProblem::Malformed => None,
    }
}

/// Refuses names that are absolute or lead out of the storage.
pub(crate) fn check_name(name: &str) -> Result<(), StorageError> {
    let inside = !name.is_empty()
        && !name.contains(['\\', '\0'])
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if inside { Ok(()) } else { Err(StorageError::Outside { name: name.to_owned() }) }
}
