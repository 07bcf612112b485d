//! Where a checkpoint's files are.

mod address;
mod direct;
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

use weightloom_errors::Hint;

use crate::index::StoredFile;

/// A place with files: a folder, or a prefix in an object store.
///
/// Names are relative to the place, with `/` between folders. Implementations
/// refuse names that lead out of it.
pub trait Storage: Send + Sync {
    /// Where this is, for messages.
    fn location(&self) -> String;

    /// The files that lie directly in the place, sorted by name.
    fn list(&self) -> Result<Vec<StoredFile>, StorageError>;

    /// The length of a file.
    fn length(&self, name: &str) -> Result<u64, StorageError>;

    /// Reads exactly `into.len()` bytes from `offset` on.
    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError>;

    /// The same in another way, where there are several.
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

    /// The bytes of a whole file in memory without reading them, where that is
    /// possible. Only for files that nobody changes while the bytes are used.
    fn map(&self, name: &str) -> Result<Option<SharedBytes>, StorageError> {
        let _ = name;
        Ok(None)
    }

    /// Puts a whole file in its place, at once or not at all.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError>;

    /// Begins a file that is written piece by piece and appears in its place
    /// when it is finished.
    fn create(&self, name: &str) -> Result<Box<dyn Upload>, StorageError> {
        let _ = name;
        Err(StorageError::Unsupported { action: "write to", location: self.location() })
    }

    /// Removes a file; it is no error if there is none.
    fn remove(&self, name: &str) -> Result<(), StorageError>;

    /// The number of bytes that it is cheaper to read and throw away than to
    /// ask a second time.
    fn gap(&self) -> u64;

    /// The folder, if this is one on a filesystem.
    fn folder(&self) -> Option<&Path> {
        None
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

/// Bytes that several hold.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A file that is being written, in bounded memory however long it gets.
///
/// Dropped before it is finished, it leaves nothing behind.
pub trait Upload: Send {
    /// Adds bytes at the end. After an error the file cannot be finished.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError>;

    /// Puts the file in its place. Only then can it be seen.
    fn finish(self: Box<Self>) -> Result<(), StorageError>;
}

/// How bytes come from a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Copied out of the system's cache. Good on every filesystem.
    Cached,
    /// Through a memory map, which saves a call into the kernel for each
    /// short run. Slow on network filesystems, and only for files that nobody
    /// changes meanwhile.
    Mapped,
    /// Past the cache, for files larger than memory. Where the filesystem
    /// cannot do that, as if cached.
    Direct,
}

/// Why a file could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum StorageError {
    /// There is no such file.
    #[error("there is no `{file}` in {location}")]
    Missing { file: String, location: String },
    /// The operating system refused.
    #[error("cannot {action} `{file}`: {message}")]
    Io { action: &'static str, file: String, kind: io::ErrorKind, message: String },
    /// The file ends before the bytes that were asked for.
    #[error("`{file}` ends before byte {end}")]
    Short { file: String, end: u64 },
    /// A file that should be small is not.
    #[error("`{file}` has {length} bytes, more than the {limit} that such a file may have")]
    TooLong { file: String, length: u64, limit: u64 },
    /// A service said no, or nothing that makes sense.
    #[error("cannot {action} `{file}`: {fault}{}", detail(message))]
    Remote { action: &'static str, file: String, service: Service, fault: RemoteProblem, message: String },
    /// It went wrong too often to try once more.
    #[error("cannot {action} `{file}`, gave up after {attempts} attempts: {fault}{}", detail(message))]
    GaveUp {
        action: &'static str,
        file: String,
        service: Service,
        attempts: u32,
        fault: RemoteProblem,
        message: String,
    },
    /// A file became another one while it was read.
    #[error("`{file}` changed while it was read")]
    Changed { file: String },
    /// A server gives out whole files only.
    #[error("the server cannot give out parts of `{file}`")]
    NoRanges { file: String },
    /// The kind of place cannot do this.
    #[error("cannot {action} {location}")]
    Unsupported { action: &'static str, location: String },
    /// A URL of a kind that is not known.
    #[error("`{url}` is not the URL of a kind of storage that is known")]
    UnknownScheme { url: String },
    /// A URL that cannot be used.
    #[error("`{url}` cannot be used: {problem}")]
    Url { url: String, problem: &'static str },
    /// A setting of a service that it does not have.
    #[error("there is no setting `{key}` for {location}")]
    UnknownSetting { key: String, location: String },
    /// A name that leads out of the checkpoint.
    #[error("`{name}` is not the name of a file inside the checkpoint")]
    Outside { name: String },
}

impl StorageError {
    pub(crate) fn io(action: &'static str, file: impl Into<String>, error: &io::Error) -> Self {
        Self::Io { action, file: file.into(), kind: error.kind(), message: error.to_string() }
    }
}

impl Hint for StorageError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { .. } => Some("check the path; `ls` shows what is there".to_owned()),
            Self::Io { kind: io::ErrorKind::StorageFull, .. } => Some(
                "make room, or choose another place; nothing that was complete has been touched".to_owned(),
            ),
            Self::Io { kind: io::ErrorKind::PermissionDenied, .. } => {
                Some("check who owns the folder and its permissions".to_owned())
            }
            Self::Short { .. } => Some("the file was cut off; copy or download it again".to_owned()),
            Self::Remote { service, fault, .. } | Self::GaveUp { service, fault, .. } => {
                remote_hint(*service, *fault)
            }
            Self::Changed { .. } => {
                Some("somebody is writing there; wait until it is finished, and open it again".to_owned())
            }
            Self::NoRanges { .. } => Some("download the file and open it from disk".to_owned()),
            Self::Unsupported { .. } => {
                Some("web servers can only be read, file by file; use S3, Google, Azure or a folder".to_owned())
            }
            Self::UnknownScheme { .. } if cfg!(feature = "object-store") => {
                Some("use s3://, gs://, az://, https://, http://, file:// or a path".to_owned())
            }
            Self::UnknownScheme { .. } => Some(
                "use a path or file://; for s3://, gs://, az:// and https:// build with the feature `object-store`"
                    .to_owned(),
            ),
            Self::UnknownSetting { .. } => {
                Some("settings are named like the environment variables of the service".to_owned())
            }
            Self::Outside { .. } => {
                Some("the checkpoint is damaged or made to harm; get it from elsewhere".to_owned())
            }
            _ => None,
        }
    }
}

/// What a service adds to a fault, if it adds anything.
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

/// Refuses names that are absolute or lead out of the place.
pub(crate) fn check_name(name: &str) -> Result<(), StorageError> {
    let inside = !name.is_empty()
        && !name.contains(['\\', '\0'])
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if inside { Ok(()) } else { Err(StorageError::Outside { name: name.to_owned() }) }
}
