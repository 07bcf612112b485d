//! Files and folders of the caches.

use std::fs;
use std::path::Path;

use weightloom_errors::FileError;
use weightloom_files::Durability;

use super::error::FetchError;

/// Creates the folder of a file.
pub(super) fn create_folder_of(path: &Path) -> Result<(), FetchError> {
    match path.parent() {
        Some(folder) => {
            Ok(fs::create_dir_all(folder).map_err(FileError::while_trying_to("create folder", folder))?)
        }
        None => Ok(()),
    }
}

/// Writes a small file atomically, after creating its folder.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FetchError> {
    create_folder_of(path)?;
    Ok(weightloom_files::write_atomic(path, bytes, Durability::File)?)
}

/// Removes a file if it exists.
pub(super) fn remove(path: &Path) -> Result<(), FetchError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FileError::new("remove", path, &error).into())
        }
        _ => Ok(()),
    }
}

/// The length of a file, after following links.
pub(super) fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len())
}
