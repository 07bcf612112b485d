//! Statistics of questions and cache hits.

use serde::{Deserialize, Serialize};

/// Statistics of questions and cache hits. The first five fields are those of
/// dlm-sway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Lookups answered by another probe's question or an earlier run.
    pub cache_hits: u64,
    /// Lookups answered by the backend.
    pub cache_misses: u64,
    /// Equal to the misses.
    pub forward_passes: u64,
    /// Time spent in the backend, in seconds.
    pub scoring_wall_s: f64,
    /// Hits over all lookups.
    pub hit_rate: f64,
    /// Number of distinct questions.
    #[serde(default)]
    pub questions: u64,
    /// Questions answered by the cache of earlier runs.
    #[serde(default)]
    pub kept: u64,
    /// Batches sent to the backend.
    #[serde(default)]
    pub rounds: u64,
}

impl Counters {
    pub(super) fn hit(&mut self) {
        self.cache_hits += 1;
        self.rate();
    }

    pub(super) fn miss(&mut self) {
        self.cache_misses += 1;
        self.forward_passes = self.cache_misses;
        self.rate();
    }

    fn rate(&mut self) {
        self.hit_rate = self.cache_hits as f64 / (self.cache_hits + self.cache_misses) as f64;
    }
}
