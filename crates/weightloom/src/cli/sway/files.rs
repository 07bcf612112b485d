//! Files that `sway` reads and writes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thiserror::Error;
use weightloom::errors::{FileError, Hint};
use weightloom::sway::Report;
use weightloom_files::{Durability, read_text, write_atomic};

use super::super::failure::Failure;

/// The largest suite or report that is read.
const MAX_TEXT: u64 = 256 << 20;

/// Why a file cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum TargetError {
    #[error("cannot write `{file}`: it exists")]
    Exists { file: String },
    #[error("cannot write `{file}`: it is a folder")]
    Folder { file: String },
    #[error("cannot write `{file}`: no folder `{folder}`")]
    NoFolder { file: String, folder: String },
}

impl Hint for TargetError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Exists { .. } => {
                "choose another name with --out, or replace it with --overwrite".to_owned()
            }
            Self::Folder { .. } => "name a file".to_owned(),
            Self::NoFolder { folder, .. } => format!("create it first: mkdir -p {folder}"),
        })
    }
}

pub(super) fn text_of(file: &Path) -> Result<String, Failure> {
    read_text(file, MAX_TEXT).map_err(|error| Failure::user(&error))
}

pub(super) fn report_of(file: &Path) -> Result<Report, Failure> {
    Report::from_json(&text_of(file)?, &file.display().to_string()).map_err(|error| Failure::user(&error))
}

/// Checks that a file can be written, before its contents are computed.
pub(super) fn check_target(file: &Path) -> Result<(), Failure> {
    let name = file.display().to_string();
    if file.is_dir() {
        return Err(Failure::user(&TargetError::Folder { file: name }));
    }
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(Failure::user(&TargetError::NoFolder { file: name, folder: folder.display().to_string() }))
        }
        _ => Ok(()),
    }
}

/// Writes a file. A regular file is replaced as a whole or left as it was.
pub(super) fn put(file: &Path, text: &str) -> Result<ExitCode, Failure> {
    put_bytes(file, text.as_bytes())
}

/// Writes a file of bytes.
pub(super) fn put_bytes(file: &Path, bytes: &[u8]) -> Result<ExitCode, Failure> {
    check_target(file)?;
    let is_regular = match std::fs::symlink_metadata(file) {
        Ok(found) => found.is_file(),
        Err(_) => true,
    };
    let written = if is_regular {
        write_atomic(file, bytes, Durability::None)
    } else {
        std::fs::write(file, bytes).map_err(FileError::while_trying_to("write", file))
    };
    written.map_err(|error| Failure::operational_with_hint(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// A path as it is written into `file`: relative to the file's folder if it is
/// inside, else absolute.
pub(super) fn relative_to(file: &Path, path: &Path) -> String {
    let full = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = full(file).parent().map(PathBuf::from).unwrap_or_default();
    let path = full(path);
    path.strip_prefix(&folder).unwrap_or(&path).display().to_string()
}
