//! Exact counts of documents, rows and tokens.

use serde::{Deserialize, Serialize};

use super::sample::Sample;
use super::status::{DocumentStatus, DropCounts};

/// Counts over all documents.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Rows of the first epoch, of the first two, and so on.
    by_epochs: Vec<u64>,
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
    /// Sums over documents, with the rows of epochs.
    pub(super) fn new(measures: &[Measure], by_epochs: Vec<u64>) -> Self {
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
        Self {
            documents: measures.len() as u64,
            rows: by_epochs.first().copied().unwrap_or(0),
            tokens,
            targets: measures.iter().map(|measure| u64::from(measure.targets)).sum(),
            dropped,
            truncated,
            cut_tokens,
            by_epochs,
        }
    }

    /// Rows of several epochs. Packed rows continue across epochs, so there may
    /// be fewer than `epochs` × `rows`.
    pub fn rows_in(&self, epochs: u64) -> u64 {
        let Some(last) = self.by_epochs.len().checked_sub(1) else { return 0 };
        let Some(index) = epochs.checked_sub(1) else { return 0 };
        match self.by_epochs.get(usize::try_from(index).unwrap_or(usize::MAX)) {
            Some(rows) => *rows,
            None => {
                let before = last.checked_sub(1).map_or(0, |before| self.by_epochs[before]);
                let of_last = self.by_epochs[last] - before;
                let more = of_last.saturating_mul(index - last as u64);
                self.by_epochs[last].saturating_add(more)
            }
        }
    }
}

/// Rows of consecutive tokens: all but the first are targets once.
pub(super) fn rows_of(tokens: u64, size: u64) -> u64 {
    tokens.saturating_sub(1).div_ceil(size)
}
