//! Small files that are there whole or not at all, and folders for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use weightloom_errors::FileError;

use super::error::FetchError;

/// Makes the folder of a file.
pub(super) fn make_folder_of(path: &Path) -> Result<(), FetchError> {
    match path.parent() {
        Some(folder) => {
            fs::create_dir_all(folder).map_err(|error| FetchError::io("make the folder", folder, &error))
        }
        None => Ok(()),
    }
}

/// Writes a small file atomically, and its folder if that is missing.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FetchError> {
    make_folder_of(path)?;
    let written = weightloom_files::write_atomic(path, bytes, weightloom_files::Durability::File);
    written.map_err(|FileError { action, path, kind, message }| FetchError::Io {
        action,
        path,
        kind,
        message,
    })
}

/// A name beside a path that nobody else uses.
pub(super) fn passing_name(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(".{name}.{}-{count}.new", std::process::id()))
}

/// Removes a file that need not be there.
pub(super) fn remove(path: &Path) -> Result<(), FetchError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FetchError::io("remove", path, &error))
        }
        _ => Ok(()),
    }
}

/// The length of what is a file once links are followed.
pub(super) fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len())
}
