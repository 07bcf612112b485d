//! Cancelling a run from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that stops a run between two questions. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

/// A flag that something else sets, such as a signal handler.
impl From<Arc<AtomicBool>> for CancelFlag {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}

impl CancelFlag {
    /// Asks the run to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`CancelFlag::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
