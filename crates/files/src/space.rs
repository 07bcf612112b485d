//! Free space on the file system of a target.

use std::path::Path;

use weightloom_machine::free_space;

use crate::atomic::folder_of;
use crate::error::WriteError;

/// Checks that the file system of a target has room for `needed` bytes.
///
/// The target and the folders above it need not exist. Nothing is refused where
/// the file system does not say how much is free.
pub fn check_free_space(target: &Path, needed: u64) -> Result<(), WriteError> {
    let folder = folder_of(target);
    match free_space(folder) {
        Some(available) if needed > available => {
            let (path, folder) = (target.display().to_string(), folder.display().to_string());
            Err(WriteError::NoSpace { path, folder, needed, available })
        }
        _ => Ok(()),
    }
}
