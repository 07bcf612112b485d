//! What a gang can be told.

use std::time::{Duration, Instant};

/// What a gang can be told when it is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GangOptions {
    /// How long ranks wait for one another before they give up. Ranks that
    /// end are noticed sooner where the engine can tell.
    pub timeout: Duration,
}

impl GangOptions {
    /// The end of a wait that begins now.
    pub fn deadline(&self) -> Instant {
        // Waiting longer than this is waiting forever, and adding it to the
        // present cannot overflow.
        const DECADE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
        Instant::now() + self.timeout.min(DECADE)
    }
}

/// Fifteen minutes: longer than the slowest rank saves a large checkpoint.
impl Default for GangOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(15 * 60) }
    }
}
