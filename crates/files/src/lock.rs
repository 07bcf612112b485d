//! Advisory locks on files: one process at a time.
//!
//! The operating system owns the locks and releases those of a process that
//! dies, so a lock file that is left over blocks nobody.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weightloom_errors::FileError;

use crate::atomic::{folder_of, hidden_name};
use crate::error::WriteError;

/// Interval between attempts to take a lock.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The longest text that is read from a lock file.
const MAX_HOLDER: u64 = 64;

/// What fails on a file system without locks.
const LOCK: &str = "lock";

/// An exclusive lock on a file, held until it is dropped.
///
/// The file stays where it is. It holds the name of the process that took the
/// lock, for the messages of those that wait.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Takes the lock; `None` if another holds it. Creates the file, in a
    /// folder that exists.
    pub fn try_take(path: &Path) -> Result<Option<Self>, FileError> {
        let mut attempts = 0;
        loop {
            let file = OpenOptions::new().create(true).read(true).write(true).truncate(false).open(path);
            let mut file = file.map_err(FileError::while_trying_to("open", path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(FileError::new(LOCK, path, &error)),
            }
            attempts += 1;
            // The file may have been removed before we held the lock. Where
            // inode numbers are unreliable, it always seems so.
            if attempts < 10 && !is_still_at(&file, path) {
                continue;
            }
            let _ = file.set_len(0);
            let _ = file.seek(SeekFrom::Start(0));
            let _ = file.write_all(format!("process {}", std::process::id()).as_bytes());
            return Ok(Some(Self { file }));
        }
    }

    /// The process that holds the lock, if the lock file says so.
    pub fn holder(path: &Path) -> Option<String> {
        let mut text = String::new();
        File::open(path).ok()?.take(MAX_HOLDER).read_to_string(&mut text).ok()?;
        let text = text.trim();
        let number = text.strip_prefix("process ")?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.to_owned())
    }
}

/// Whether the locked file is the one that others open.
#[cfg(unix)]
fn is_still_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => held.ino() == there.ino() && held.dev() == there.dev(),
        _ => false,
    }
}

/// Open files cannot be removed on this platform.
#[cfg(not(unix))]
fn is_still_at(_file: &File, _path: &Path) -> bool {
    true
}

/// The right to write a file or folder, held until it is dropped.
///
/// The lock is a hidden file beside the target, `.name.lock`, which is removed
/// when the lock is released. On a file system without locks every process gets
/// the right; unique temporary names still keep their contents apart.
///
/// ```
/// use weightloom_files::{TargetLock, WriteError};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let target = folder.path().join("model");
/// let lock = TargetLock::try_take(&target)?;
/// assert!(matches!(TargetLock::try_take(&target), Err(WriteError::InUse { .. })));
/// drop(lock);
/// assert!(TargetLock::try_take(&target).is_ok());
/// # Ok::<(), WriteError>(())
/// ```
#[derive(Debug)]
pub struct TargetLock {
    lock: Option<FileLock>,
    path: PathBuf,
}

impl TargetLock {
    /// Locks a target, whose folder must exist.
    pub fn try_take(target: &Path) -> Result<Self, WriteError> {
        Self::at(folder_of(target).join(hidden_name(target, "lock")), target)
    }

    /// Locks the files inside a folder that exists.
    pub fn try_take_inside(folder: &Path) -> Result<Self, WriteError> {
        Self::at(folder.join(".weightloom.lock"), folder)
    }

    /// Locks a target, waiting for another writer up to a time limit.
    pub fn take(target: &Path, patience: Duration) -> Result<Self, WriteError> {
        let started = Instant::now();
        loop {
            match Self::try_take(target) {
                Err(WriteError::InUse { .. }) if started.elapsed() < patience => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                other => return other,
            }
        }
    }

    fn at(path: PathBuf, target: &Path) -> Result<Self, WriteError> {
        match FileLock::try_take(&path) {
            Ok(Some(lock)) => Ok(Self { lock: Some(lock), path }),
            Ok(None) => {
                let holder = FileLock::holder(&path);
                Err(WriteError::InUse { path: target.display().to_string(), holder })
            }
            // The file system has no locks.
            Err(error) if error.action == LOCK => {
                let _ = fs::remove_file(&path);
                Ok(Self { lock: None, path })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the file system has locks, so that no one else is writing.
    pub fn is_exclusive(&self) -> bool {
        self.lock.is_some()
    }
}

impl Drop for TargetLock {
    fn drop(&mut self) {
        // Removed while it is held: who opened it before finds out that it is
        // gone, and opens it again.
        if let Some(FileLock { file }) = self.lock.take() {
            let _ = fs::remove_file(&self.path);
            drop(file);
        }
    }
}
