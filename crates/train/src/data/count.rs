//! How much there is to learn, counted exactly.

use serde::{Deserialize, Serialize};

use super::sample::{Fate, Sample};
use crate::config::RowLayout;

/// What a pass over all documents found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Documents, with those that are left out.
    pub documents: u64,
    /// Rows of one epoch.
    pub rows: u64,
    /// Tokens of documents that are not left out.
    pub tokens: u64,
    /// Tokens that count in the loss.
    pub targets: u64,
    /// Documents that are left out, since nothing in them counts.
    pub left_out: u64,
    /// Documents that are cut off at the end.
    pub truncated: u64,
    layout: RowLayout,
    size: u64,
}

/// What is known of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Its tokens; none if it is left out.
    pub tokens: u32,
    /// Those that count.
    pub targets: u32,
    /// What became of it.
    pub fate: Fate,
}

/// How far a pass over documents has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Documents behind it.
    pub done: u64,
    /// All documents.
    pub of: u64,
}

impl Measure {
    pub(super) fn of(sample: &Sample) -> Self {
        // A document has less than 2^32 bytes, and tokens have bytes.
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self { tokens: small(sample.tokens.len()), targets: small(sample.targets()), fate: sample.fate }
    }
}

impl Count {
    /// The sum over documents, for rows of this layout and size.
    pub(super) fn new(measures: &[Measure], layout: RowLayout, size: usize) -> Self {
        let size = size as u64;
        let fate = |fate: Fate| measures.iter().filter(|measure| measure.fate == fate).count() as u64;
        let tokens = measures.iter().map(|measure| u64::from(measure.tokens)).sum();
        let mut count = Self {
            documents: measures.len() as u64,
            rows: measures.iter().map(|measure| rows_of(measure.tokens.into(), size)).sum(),
            tokens,
            targets: measures.iter().map(|measure| u64::from(measure.targets)).sum(),
            left_out: fate(Fate::LeftOut),
            truncated: fate(Fate::Truncated),
            layout,
            size,
        };
        if layout == RowLayout::Packed {
            count.rows = rows_of(tokens, size);
        }
        count
    }

    /// Rows of several epochs. Packed rows go on from one epoch to the next,
    /// so that there may be fewer than in as many single ones.
    pub fn rows_in(&self, epochs: u64) -> u64 {
        match self.layout {
            RowLayout::Packed => rows_of(self.tokens.saturating_mul(epochs), self.size),
            RowLayout::Padded => self.rows.saturating_mul(epochs),
        }
    }
}

/// Rows of tokens one behind the other: all but the first are targets once.
fn rows_of(tokens: u64, size: u64) -> u64 {
    tokens.saturating_sub(1).div_ceil(size)
}
