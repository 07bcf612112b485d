//! File locks: one process at a time downloads each file.
//!
//! The operating system owns the locks and releases those of a process that
//! dies. The lock files are those of `huggingface_hub`, so Python and we wait
//! for each other, without a time limit.

use std::path::Path;
use std::time::Duration;

use super::disk;
use super::error::FetchError;
use super::observer::{FetchObserver, LockWait};

/// Interval between attempts to take a lock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A lock, held until it is dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    _lock: weightloom_files::FileLock,
}

impl FileLock {
    /// Takes a lock unless another process holds it.
    pub(super) fn try_take(path: &Path) -> Result<Option<Self>, FetchError> {
        disk::create_folder_of(path)?;
        Ok(weightloom_files::FileLock::try_take(path)?.map(|lock| Self { _lock: lock }))
    }

    /// Takes a lock, waiting for it without a time limit.
    pub(super) fn take(path: &Path, what: &str, observer: &dyn FetchObserver) -> Result<Self, FetchError> {
        if let Some(lock) = Self::try_take(path)? {
            return Ok(lock);
        }
        let holder = weightloom_files::FileLock::holder(path);
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
