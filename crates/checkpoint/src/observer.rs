//! Progress of long operations.

/// Receives progress. Called from several threads at once.
pub trait Observer: Sync {
    /// An operation over `total` bytes begins.
    fn begin(&self, work: &str, total: u64) {
        let _ = (work, total);
    }

    /// Another `bytes` bytes are done.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether the operation should end early, with
    /// [`CheckpointError::Cancelled`](crate::CheckpointError::Cancelled).
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Ignores progress.
impl Observer for () {}
