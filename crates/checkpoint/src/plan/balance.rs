//! Which of several ranks that hold the same writes it.

/// How copies are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Redundancy {
    /// The largest first, each to the rank that writes least so far. What only
    /// one rank has counts from the start.
    #[default]
    Balanced,
    /// Each to the lowest rank that has it.
    LowestRank,
}

/// Bytes that each rank writes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load(Vec<u64>);

impl Load {
    /// Nothing yet, for so many ranks.
    pub fn new(ranks: usize) -> Self {
        Self(vec![0; ranks])
    }

    /// Charges a rank.
    pub fn add(&mut self, rank: usize, bytes: u64) {
        self.0[rank] += bytes;
    }

    /// Charges the one of the holders that has the least, the lowest of equals,
    /// and tells which that is. There must be one.
    pub fn choose(&mut self, redundancy: Redundancy, holders: &[u32], bytes: u64) -> usize {
        let mut chosen = holders[0] as usize;
        if redundancy == Redundancy::Balanced {
            for &holder in &holders[1..] {
                if self.0[holder as usize] < self.0[chosen] {
                    chosen = holder as usize;
                }
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
