//! Exact counts of documents, rows and tokens.

use serde::{Deserialize, Serialize};

use super::sample::Sample;
use super::status::{DocumentStatus, DropCounts};
use crate::config::RowLayout;

/// Counts over all documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Documents, including dropped ones.
    pub documents: u64,
    /// Rows per epoch.
    pub rows: u64,
    /// Tokens of documents that are used, without those cut off.
    pub tokens: u64,
    /// Tokens that contribute to the loss.
    pub targets: u64,
    /// Documents that are not used.
    pub dropped: DropCounts,
    /// Documents longer than a row.
    pub truncated: u64,
    /// Tokens cut off from truncated documents.
    pub cut_tokens: u64,
    layout: RowLayout,
    size: u64,
}

/// The size of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Number of tokens; 0 if dropped.
    pub tokens: u32,
    /// Number of tokens that contribute to the loss.
    pub targets: u32,
    /// Number of tokens before truncation, also of dropped documents.
    pub full_length: u32,
    /// Whether it is used whole.
    pub status: DocumentStatus,
}

/// Progress of a pass over documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Documents done.
    pub done: u64,
    /// All documents.
    pub of: u64,
}

impl Measure {
    pub(super) fn of(sample: &Sample) -> Self {
        // A document has fewer than 2^32 bytes, and so fewer tokens.
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            tokens: small(sample.length()),
            targets: small(sample.targets()),
            full_length: small(sample.full_length),
            status: sample.status,
        }
    }
}

impl Count {
    /// Sums over documents, for rows of this layout and size.
    pub(super) fn new(measures: &[Measure], layout: RowLayout, size: usize) -> Self {
        let size = size as u64;
        let mut dropped = DropCounts::default();
        let (mut truncated, mut cut_tokens) = (0, 0);
        for measure in measures {
            match measure.status {
                DocumentStatus::Whole => {}
                DocumentStatus::Truncated => {
                    truncated += 1;
                    cut_tokens += u64::from(measure.full_length.saturating_sub(measure.tokens));
                }
                DocumentStatus::Dropped(reason) => dropped.add(reason),
            }
        }
        let tokens = measures.iter().map(|measure| u64::from(measure.tokens)).sum();
        let mut count = Self {
            documents: measures.len() as u64,
            rows: measures.iter().map(|measure| rows_of(measure.tokens.into(), size)).sum(),
            tokens,
            targets: measures.iter().map(|measure| u64::from(measure.targets)).sum(),
            dropped,
            truncated,
            cut_tokens,
            layout,
            size,
        };
        match layout {
            RowLayout::Packed => count.rows = rows_of(tokens, size),
            RowLayout::Padded => {}
            RowLayout::Pairs => {
                count.rows = measures.iter().filter(|measure| measure.tokens > 0).count() as u64;
            }
        }
        count
    }

    /// Rows of several epochs. Packed rows continue across epochs, so there may
    /// be fewer than `epochs` × `rows`.
    pub fn rows_in(&self, epochs: u64) -> u64 {
        match self.layout {
            RowLayout::Packed => rows_of(self.tokens.saturating_mul(epochs), self.size),
            RowLayout::Padded | RowLayout::Pairs => self.rows.saturating_mul(epochs),
        }
    }
}

/// Rows of consecutive tokens: all but the first are targets once.
fn rows_of(tokens: u64, size: u64) -> u64 {
    tokens.saturating_sub(1).div_ceil(size)
}
