//! One run at a time in a folder.
//!
//! Two runs that write the same metrics and checkpoints would each ruin the
//! other's. The system lets go of a lock when a process ends, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use crate::error::TrainError;

/// The file that is locked.
const NAME: &str = ".lock";

/// A folder that no other run may write to as long as this is held. None where
/// the filesystem has no locks.
pub(super) struct Held(#[allow(dead_code, reason = "it is held, not used")] Option<File>);

/// Takes a folder, which must be there.
pub(super) fn hold(folder: &Path) -> Result<Held, TrainError> {
    let path = folder.display().to_string();
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(NAME));
    let file = open.map_err(|error| TrainError::Folder { path: path.clone(), message: error.to_string() })?;
    match file.try_lock() {
        Ok(()) => Ok(Held(Some(file))),
        Err(TryLockError::WouldBlock) => Err(TrainError::InUse { folder: path }),
        Err(TryLockError::Error(_)) => Ok(Held(None)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn a_folder_is_held_once_and_let_go_of() {
        let folder = tempfile::tempdir().unwrap();
        let first = hold(folder.path()).unwrap();
        let path = folder.path().display().to_string();
        assert_eq!(hold(folder.path()).err(), Some(TrainError::InUse { folder: path.clone() }));
        drop(first);
        assert!(hold(folder.path()).is_ok());
        let nowhere = folder.path().join("nowhere");
        assert!(matches!(hold(&nowhere).err(), Some(TrainError::Folder { .. })));
    }
}
