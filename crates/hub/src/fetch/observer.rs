//! Progress of downloads.

use std::path::Path;
use std::time::Duration;

use super::error::TransferError;

/// Receives the progress of downloads, from several threads at once.
///
/// Files are named as in their repository, or by their URL without its query.
pub trait FetchObserver: Sync {
    /// A download starts; `already` of its bytes are on disk.
    fn started(&self, file: &str, bytes: Option<u64>, already: u64) {
        let _ = (file, bytes, already);
    }

    /// More bytes have arrived.
    fn progress(&self, file: &str, bytes: u64) {
        let _ = (file, bytes);
    }

    /// Bytes that had arrived are discarded.
    fn lost(&self, file: &str, bytes: u64) {
        let _ = (file, bytes);
    }

    /// A file is complete, verified and in the cache.
    fn finished(&self, file: &str) {
        let _ = file;
    }

    /// Another process is downloading the file. Called once, before the wait.
    fn waiting(&self, wait: &LockWait<'_>) {
        let _ = wait;
    }

    /// A request failed and is sent again after the delay.
    fn retrying(&self, file: &str, reason: &TransferError, delay: Duration) {
        let _ = (file, reason, delay);
    }

    /// Whether to stop. Called a few times a second; downloaded bytes are
    /// kept.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores everything.
impl FetchObserver for () {}

/// A wait for another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWait<'a> {
    /// The file that both want.
    pub file: &'a str,
    /// The lock file.
    pub lock: &'a Path,
    /// The process that holds it, if known.
    pub holder: Option<String>,
}
