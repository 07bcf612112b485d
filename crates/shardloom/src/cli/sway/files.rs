//! Files that `sway` reads and writes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use shardloom::layout::Hint;
use shardloom::sway::Report;
use thiserror::Error;

use super::super::failure::Failure;

/// Why a file could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum FileError {
    /// It cannot be read.
    #[error("{file}: cannot be read: {message}")]
    Unreadable { file: String, message: String },
    /// It is there already.
    #[error("{file} is there already")]
    Exists { file: String },
}

impl Hint for FileError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable { .. } => None,
            Self::Exists { .. } => Some("give another name with --out, or --overwrite".to_owned()),
        }
    }
}

pub(super) fn text_of(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        Failure::user(&FileError::Unreadable { file: file.display().to_string(), message: error.to_string() })
    })
}

pub(super) fn report_of(file: &Path) -> Result<Report, Failure> {
    Report::from_json(&text_of(file)?, &file.display().to_string()).map_err(|error| Failure::user(&error))
}

pub(super) fn put(file: &Path, text: &str) -> Result<ExitCode, Failure> {
    std::fs::write(file, text)
        .map_err(|error| Failure::operational(&error).about(&format!("cannot write {}", file.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// A path as a file would tell it that is read elsewhere: from its own folder
/// where that is above, or else in full.
pub(super) fn seen_from(file: &Path, path: &Path) -> String {
    let full = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = full(file).parent().map(PathBuf::from).unwrap_or_default();
    let path = full(path);
    path.strip_prefix(&folder).unwrap_or(&path).display().to_string()
}
