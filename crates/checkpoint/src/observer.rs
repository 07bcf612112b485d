//! Progress of long work, told to whoever watches.

/// Watches long work. Called from several threads at once.
pub trait Observer: Sync {
    /// Work begins that goes through so many bytes.
    fn begin(&self, work: &str, total: u64) {
        let _ = (work, total);
    }

    /// So many more bytes are done.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }
}

/// Nobody watches.
impl Observer for () {}
