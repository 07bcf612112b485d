//! What a gang can be told.

use std::time::Duration;

/// What a gang can be told when it is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GangOptions {
    /// How long ranks wait for one another before they give up. Ranks that
    /// end are noticed sooner where the engine can tell.
    pub timeout: Duration,
}

/// Fifteen minutes: longer than the slowest rank saves a large checkpoint.
impl Default for GangOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(15 * 60) }
    }
}
