//! One process at a time for each file.
//!
//! The locks are the operating system's, so they end with the process that
//! holds them, and they are in the files where `huggingface_hub` has its own:
//! Python and we wait for each other. Nobody waits in vain for a time to run
//! out, and nobody fails because another one is slow.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use super::disk;
use super::error::FetchError;
use super::observer::{FetchObserver, LockWait};

/// The pause between two looks at a lock that somebody else has.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes a lock unless somebody else has it.
    pub(super) fn try_take(path: &Path) -> Result<Option<Self>, FetchError> {
        disk::make_folder_of(path)?;
        let failed = |error| FetchError::io("lock", path, &error);
        let mut looks = 0;
        loop {
            let mut file = OpenOptions::new()
                .create(true)
                .read(true)
                .write(true)
                .truncate(false)
                .open(path)
                .map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            looks += 1;
            // Somebody may have removed the file before we had the lock. Where
            // numbers of files cannot be trusted, that looks so every time.
            if looks < 10 && !is_still_at(&file, path) {
                continue;
            }
            // Only so that others can say for whom they wait.
            let _ = file.set_len(0);
            let _ = file.seek(SeekFrom::Start(0));
            let _ = file.write_all(format!("process {}", std::process::id()).as_bytes());
            return Ok(Some(Self { _file: file }));
        }
    }

    /// Takes a lock, and waits for it as long as it takes.
    pub(super) fn take(path: &Path, what: &str, observer: &dyn FetchObserver) -> Result<Self, FetchError> {
        if let Some(lock) = Self::try_take(path)? {
            return Ok(lock);
        }
        let holder = fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let holder = holder.filter(|text| text.starts_with("process ") && text.len() < 64);
        observer.waiting(&LockWait { file: what, lock: path, holder });
        loop {
            std::thread::sleep(LOOK_EVERY);
            if observer.cancelled() {
                return Err(FetchError::Cancelled { what: what.to_owned() });
            }
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
        }
    }
}

/// Whether the file that was locked is the one that others will open.
#[cfg(unix)]
fn is_still_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => held.ino() == there.ino() && held.dev() == there.dev(),
        _ => false,
    }
}

/// Open files cannot be removed here.
#[cfg(not(unix))]
fn is_still_at(_file: &File, _path: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Told(Mutex<Vec<Option<String>>>);

    impl FetchObserver for Told {
        fn waiting(&self, wait: &LockWait<'_>) {
            self.0.lock().unwrap().push(wait.holder.clone());
        }
    }

    #[test]
    fn the_second_one_waits_and_is_told_for_whom() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/a.lock");
        let told = Told(Mutex::new(Vec::new()));
        let first = Lock::take(&path, "a", &told).unwrap();
        assert!(Lock::try_take(&path).unwrap().is_none());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::take(&path, "a", &told).map(drop));
            while told.0.lock().unwrap().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap().unwrap();
        });
        assert_eq!(*told.0.lock().unwrap(), [Some(format!("process {}", std::process::id()))]);
    }

    #[test]
    fn whoever_waits_can_stop() {
        struct Impatient;
        impl FetchObserver for Impatient {
            fn cancelled(&self) -> bool {
                true
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let _first = Lock::take(&path, "a", &()).unwrap();
        let error = Lock::take(&path, "a", &Impatient).unwrap_err();
        assert_eq!(error, FetchError::Cancelled { what: "a".to_owned() });
    }
}
