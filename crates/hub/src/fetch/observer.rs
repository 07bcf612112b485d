//! Progress of downloads, told to whoever watches.

use std::path::Path;
use std::time::Duration;

use super::error::Fault;

/// Watches downloads. Called from several threads at once.
///
/// Files are named as in their repository, or by their URL without its query.
pub trait FetchObserver: Sync {
    /// A file of so many bytes is fetched, of which some are on disk already.
    fn started(&self, file: &str, bytes: Option<u64>, already: u64) {
        let _ = (file, bytes, already);
    }

    /// So many more bytes of a file have arrived.
    fn progress(&self, file: &str, bytes: u64) {
        let _ = (file, bytes);
    }

    /// So many bytes of a file that had arrived are of no use.
    fn lost(&self, file: &str, bytes: u64) {
        let _ = (file, bytes);
    }

    /// A file is complete, checked and in the cache.
    fn finished(&self, file: &str) {
        let _ = file;
    }

    /// Somebody else is fetching the file; told once, before the wait.
    fn waiting(&self, wait: &LockWait<'_>) {
        let _ = wait;
    }

    /// Something went wrong that may pass.
    fn retrying(&self, file: &str, why: &Fault, after: Duration) {
        let _ = (file, why, after);
    }

    /// Whether to stop. Asked a few times a second; what has arrived is kept.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Nobody watches.
impl FetchObserver for () {}

/// A wait for somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWait<'a> {
    /// The file that both want.
    pub file: &'a str,
    /// The lock file.
    pub lock: &'a Path,
    /// Which process holds it, if that is known.
    pub holder: Option<String>,
}
