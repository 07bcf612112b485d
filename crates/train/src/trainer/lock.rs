//! A lock on the run's folder.
//!
//! Two runs in one folder would corrupt each other's metrics and checkpoints.
//! The operating system releases the lock when the process ends, however it
//! ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use weightloom_errors::FileError;

use crate::error::TrainError;

/// The name of the locked file.
const NAME: &str = ".lock";

/// Attempts to take the lock, and the pause between them.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// The lock, released on drop; `None` if the file system does not support locks.
pub(super) struct FolderLock(#[allow(dead_code, reason = "held until dropped")] Option<File>);

/// Locks an existing folder.
pub(super) fn lock(folder: &Path) -> Result<FolderLock, TrainError> {
    let path = folder.join(NAME);
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = open.map_err(FileError::while_trying_to("open", &path))?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        match file.try_lock() {
            Ok(()) => return Ok(FolderLock(Some(file))),
            // `is_running` of another process holds it for a moment.
            Err(TryLockError::WouldBlock) if attempts < ATTEMPTS => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(TrainError::InUse { folder: folder.display().to_string() });
            }
            Err(TryLockError::Error(_)) => return Ok(FolderLock(None)),
        }
    }
}

/// Whether a run is in progress in a folder: whether its process holds the lock.
/// A file system without locks gives `false`.
pub fn is_running(folder: &Path) -> bool {
    let Ok(file) = File::open(folder.join(NAME)) else { return false };
    let is_locked = || matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    // A program that this process starts has a copy of its files for a moment, and with
    // them the lock of a run that has just ended.
    (0..ATTEMPTS).all(|attempt| {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        is_locked()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn a_run_is_in_progress_while_it_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_running(folder.path()));
        // Asking does not create the file.
        assert!(!folder.path().join(NAME).exists());
        let held = lock(folder.path()).unwrap();
        assert!(is_running(folder.path()));
        drop(held);
        assert!(!is_running(folder.path()));
        assert!(lock(folder.path()).is_ok());
    }

    #[test]
    fn a_folder_has_one_lock_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock(folder.path()).unwrap();
        let path = folder.path().display().to_string();
        assert_eq!(lock(folder.path()).err(), Some(TrainError::InUse { folder: path.clone() }));
        drop(first);
        assert!(lock(folder.path()).is_ok());
        let nowhere = folder.path().join("nowhere");
        assert!(matches!(lock(&nowhere).err(), Some(TrainError::File(_))));
    }
}
