//! Deduplication: which of the ranks that hold a replica writes it.
//!
//! Replicas are assigned largest first, each to the rank with the least load.
//! Bytes that only one rank holds count from the start.

/// Bytes assigned to each rank so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteLoad(Vec<u64>);

impl WriteLoad {
    /// Zero bytes for each of `ranks` ranks.
    pub fn new(ranks: usize) -> Self {
        Self(vec![0; ranks])
    }

    /// Assigns bytes to a rank.
    pub fn add(&mut self, rank: usize, bytes: u64) {
        self.0[rank] += bytes;
    }

    /// Assigns bytes to the holder with the least load and returns its rank.
    /// The lowest rank wins a tie. `holders` must not be empty.
    pub fn assign(&mut self, holders: &[u32], bytes: u64) -> usize {
        let mut chosen = holders[0] as usize;
        for &holder in &holders[1..] {
            if self.0[holder as usize] < self.0[chosen] {
                chosen = holder as usize;
            }
        }
        self.0[chosen] += bytes;
        chosen
    }

    /// Bytes by rank.
    pub fn by_rank(&self) -> &[u64] {
        &self.0
    }
}
