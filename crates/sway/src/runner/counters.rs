//! How much was asked.

use serde::{Deserialize, Serialize};

/// How much was asked. The first fields are those of dlm-sway, the others ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// How often an answer was there already: another probe had asked, or an
    /// earlier run.
    pub cache_hits: u64,
    /// How often it was not.
    pub cache_misses: u64,
    /// The same as the misses.
    pub forward_passes: u64,
    /// How long the backend took.
    pub scoring_wall_s: f64,
    /// The part of the hits.
    pub hit_rate: f64,
    /// How many different questions there were.
    #[serde(default)]
    pub questions: u64,
    /// How many of their answers an earlier run had kept.
    #[serde(default)]
    pub kept: u64,
    /// How often the backend was asked.
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
