//! File locks: one process at a time downloads each file.
//!
//! The operating system owns the locks and releases those of a process that
//! dies. The lock files are those of `huggingface_hub`, so Python and we wait
//! for each other, without a time limit.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use weightloom_errors::FileError;

use super::disk;
use super::error::FetchError;
use super::observer::{FetchObserver, LockWait};

/// Interval between attempts to take a lock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A lock, held until it is dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes a lock unless another process holds it.
    pub(super) fn try_take(path: &Path) -> Result<Option<Self>, FetchError> {
        disk::create_folder_of(path)?;
        let failed = FileError::while_trying_to("lock", path);
        let mut tries = 0;
        loop {
            let mut file = OpenOptions::new()
                .create(true)
                .read(true)
                .write(true)
                .truncate(false)
                .open(path)
                .map_err(&failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed(error).into()),
            }
            tries += 1;
            // The file may have been removed before we held the lock. Where
            // inode numbers are unreliable, it always seems so.
            if tries < 10 && !is_still_at(&file, path) {
                continue;
            }
            // Lets waiting processes report the holder.
            let _ = file.set_len(0);
            let _ = file.seek(SeekFrom::Start(0));
            let _ = file.write_all(format!("process {}", std::process::id()).as_bytes());
            return Ok(Some(Self { _file: file }));
        }
    }

    /// Takes a lock, waiting for it without a time limit.
    pub(super) fn take(path: &Path, what: &str, observer: &dyn FetchObserver) -> Result<Self, FetchError> {
        if let Some(lock) = Self::try_take(path)? {
            return Ok(lock);
        }
        let holder = fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let holder = holder.filter(|text| text.starts_with("process ") && text.len() < 64);
        observer.waiting(&LockWait { file: what, lock: path, holder });
        loop {
            std::thread::sleep(POLL_INTERVAL);
            if observer.cancelled() {
                return Err(FetchError::Cancelled { what: what.to_owned() });
            }
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Holders(Mutex<Vec<Option<String>>>);

    impl FetchObserver for Holders {
        fn waiting(&self, wait: &LockWait<'_>) {
            self.0.lock().unwrap().push(wait.holder.clone());
        }
    }

    #[test]
    fn the_second_process_waits_and_learns_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/a.lock");
        let holders = Holders(Mutex::new(Vec::new()));
        let first = FileLock::take(&path, "a", &holders).unwrap();
        assert!(FileLock::try_take(&path).unwrap().is_none());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| FileLock::take(&path, "a", &holders).map(drop));
            while holders.0.lock().unwrap().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap().unwrap();
        });
        assert_eq!(*holders.0.lock().unwrap(), [Some(format!("process {}", std::process::id()))]);
    }

    #[test]
    fn a_wait_can_be_cancelled() {
        struct Impatient;
        impl FetchObserver for Impatient {
            fn cancelled(&self) -> bool {
                true
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let _first = FileLock::take(&path, "a", &()).unwrap();
        let error = FileLock::take(&path, "a", &Impatient).unwrap_err();
        assert_eq!(error, FetchError::Cancelled { what: "a".to_owned() });
    }
}
