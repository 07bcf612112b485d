//! Files that `sway` reads and writes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thiserror::Error;
use weightloom::errors::{self, Hint};
use weightloom::sway::Report;
use weightloom_files::{Durability, write_atomic};

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
    /// There is a folder of that name.
    #[error("{file} is a folder, so nothing can be written there")]
    Folder { file: String },
    /// It would lie in a folder that is not there.
    #[error("{file} cannot be written: there is no folder {folder}")]
    NoFolder { file: String, folder: String },
}

impl Hint for FileError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable { .. } => None,
            Self::Exists { .. } => Some("give another name with --out, or --overwrite".to_owned()),
            Self::Folder { .. } => Some("name a file".to_owned()),
            Self::NoFolder { folder, .. } => Some(format!("make it first: mkdir -p {folder}")),
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

/// Whether a file could be written, as far as that can be told before what goes
/// there is made.
pub(super) fn check_target(file: &Path) -> Result<(), Failure> {
    let name = file.display().to_string();
    if file.is_dir() {
        return Err(Failure::user(&FileError::Folder { file: name }));
    }
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(Failure::user(&FileError::NoFolder { file: name, folder: folder.display().to_string() }))
        }
        _ => Ok(()),
    }
}

/// Writes a file. A plain one is there as a whole or stays as it was.
pub(super) fn put(file: &Path, text: &str) -> Result<ExitCode, Failure> {
    check_target(file)?;
    let is_plain = match std::fs::symlink_metadata(file) {
        Ok(found) => found.is_file(),
        Err(_) => true,
    };
    let written = if is_plain {
        write_atomic(file, text.as_bytes(), Durability::None)
    } else {
        std::fs::write(file, text).map_err(errors::FileError::while_trying_to("write", file))
    };
    written.map_err(|error| Failure::operational_with_hint(&error))?;
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
