//! Errors of the file system that name the file.

use std::io;
use std::path::Path;

use crate::Hint;

/// A failed operation on a file or folder.
///
/// Holds the text of the [`io::Error`] rather than the error itself, so that
/// error types that contain it can be cloned and compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} `{path}`: {message}")]
#[allow(missing_docs)]
pub struct FileError {
    pub action: &'static str,
    pub path: String,
    pub kind: io::ErrorKind,
    pub message: String,
}

impl FileError {
    /// Returns a function for `map_err` that adds the action and the path.
    pub fn while_trying_to(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |error| Self::new(action, path, &error)
    }

    /// An [`io::Error`] with the action and the path it belongs to.
    pub fn new(action: &'static str, path: &Path, error: &io::Error) -> Self {
        Self { action, path: path.display().to_string(), kind: error.kind(), message: error.to_string() }
    }
}

impl Hint for FileError {
    fn hint(&self) -> Option<String> {
        let hint = match self.kind {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check the permissions of the file and its folder",
            io::ErrorKind::StorageFull => "free some space on the disk",
            io::ErrorKind::ReadOnlyFilesystem => "choose a folder on a writable file system",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_action_the_path_and_a_fix() {
        let error = FileError::while_trying_to("create", Path::new("a/b"))(io::ErrorKind::StorageFull.into());
        assert_eq!(error.to_string(), "cannot create `a/b`: no storage space");
        assert_eq!(error.hint().as_deref(), Some("free some space on the disk"));
    }
}
