//! Where a checkpoint's files are.

mod local;
#[cfg(test)]
pub(crate) mod memory;

pub use local::LocalStorage;

use std::io;
use std::path::{Component, Path};

use shardloom_layout::Hint;

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

    /// Puts a whole file in its place, at once or not at all.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError>;

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

    /// Whether there is such a file.
    fn has(&self, name: &str) -> Result<Presence, StorageError> {
        match self.length(name) {
            Ok(length) => Ok(Presence::There { length }),
            Err(StorageError::Missing { .. }) => Ok(Presence::Absent),
            Err(error) => Err(error),
        }
    }
}

/// Whether a file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It does.
    There {
        /// Its length.
        length: u64,
    },
    /// It does not.
    Absent,
}

/// Why a file could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// There is no such file.
    #[error("there is no `{file}` in {location}")]
    Missing {
        /// The file.
        file: String,
        /// Where it was looked for.
        location: String,
    },
    /// The operating system refused.
    #[error("cannot {action} `{file}`: {message}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        file: String,
        /// The kind of refusal.
        kind: io::ErrorKind,
        /// In the system's words.
        message: String,
    },
    /// The file ends before the bytes that were asked for.
    #[error("`{file}` ends before byte {end}")]
    Short {
        /// The file.
        file: String,
        /// One past the last byte asked for.
        end: u64,
    },
    /// A file that should be small is not.
    #[error("`{file}` has {length} bytes, more than the {limit} that such a file may have")]
    TooLong {
        /// The file.
        file: String,
        /// Its length.
        length: u64,
        /// The most it may have.
        limit: u64,
    },
    /// A name that leads out of the checkpoint.
    #[error("`{name}` is not the name of a file inside the checkpoint")]
    Outside {
        /// The name.
        name: String,
    },
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
            Self::Outside { .. } => {
                Some("the checkpoint is damaged or made to harm; get it from elsewhere".to_owned())
            }
            _ => None,
        }
    }
}

/// Refuses names that are absolute or lead out of the place.
pub(crate) fn check_name(name: &str) -> Result<(), StorageError> {
    let inside = !name.is_empty()
        && !name.contains(['\\', '\0'])
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if inside { Ok(()) } else { Err(StorageError::Outside { name: name.to_owned() }) }
}
