//! Options of a gang.

use std::time::{Duration, Instant};

/// Options of a gang and its sub-gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GangOptions {
    /// How long a rank waits for others before it fails. Engines that notice
    /// the end of a rank fail sooner.
    pub timeout: Duration,
}

impl GangOptions {
    /// The end of a wait that starts now.
    pub fn deadline(&self) -> Instant {
        // As good as forever, without overflow in the addition.
        const DECADE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
        Instant::now() + self.timeout.min(DECADE)
    }
}

/// Fifteen minutes: longer than the slowest rank takes to save a checkpoint.
impl Default for GangOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(15 * 60) }
    }
}
