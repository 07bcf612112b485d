//! What a connection is doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::time::Instant;

/// The activity of one connection.
#[derive(Debug)]
pub(crate) struct Activity {
    opened: Instant,
    requests: AtomicUsize,
    /// Milliseconds from `opened` to the last time that the server had something
    /// to do for it. Bytes of a head that never ends do not count.
    served: AtomicU64,
}

/// What a connection may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionClass {
    /// Everything.
    Regular,
    /// `/health` and `/ready`: all others are taken.
    Reserved,
}

/// A request in progress, until it is dropped.
pub(crate) struct ActiveRequest(Arc<Activity>);

impl Activity {
    pub(crate) fn new() -> Self {
        Self { opened: Instant::now(), requests: AtomicUsize::new(0), served: AtomicU64::new(0) }
    }

    /// Notes that data went to the client.
    pub(crate) fn touch(&self) {
        let since = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.served.fetch_max(since, Ordering::Relaxed);
    }

    pub(crate) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.requests.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// The milliseconds for which it has had no request; `None` while it has one.
    pub(crate) fn idle_for(&self) -> Option<u64> {
        if self.requests.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        Some(now.saturating_sub(self.served.load(Ordering::Relaxed)))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}
