//! Rows of inputs and targets.

use serde::Serialize;
use weightloom_nn::IGNORED;

use super::sample::Sample;

/// A row of inputs and targets. All rows have the same length, with padding at
/// the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Input tokens.
    pub inputs: Vec<u32>,
    /// The next token at each position, or [`IGNORED`].
    pub targets: Vec<i64>,
    /// Positions where documents start. A row that starts inside a document does
    /// not contain 0.
    pub starts: Vec<usize>,
    /// Number of inputs that are not padding.
    pub length: usize,
    /// The second sequence, in a row of preferences.
    pub pair: Option<Box<RowPair>>,
}

/// The second sequence of a row of preferences, and what the first is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPair {
    /// What the two sequences are.
    pub kind: PairKind,
    /// The number of the document in the data.
    pub document: u64,
    /// The second sequence.
    pub other: Row,
}

/// What the two sequences of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PairKind {
    /// A prompt with its chosen, and with its rejected completion.
    Rejected,
    /// A prompt with its completion, and with one of another prompt.
    Mismatched {
        /// Whether its completion is desirable.
        desirable: bool,
    },
}

impl Row {
    /// A row of padding.
    pub(crate) fn empty(size: usize, pad: u32) -> Self {
        Self {
            inputs: vec![pad; size],
            targets: vec![IGNORED; size],
            starts: Vec::new(),
            length: 0,
            pair: None,
        }
    }

    /// Whether it has tokens of several documents.
    pub fn is_packed(&self) -> bool {
        self.starts.iter().any(|&start| start > 0)
    }

    /// The first position of the document of each of the first `count` positions.
    /// Padding counts as a document.
    pub fn document_starts(&self, count: usize) -> Vec<i64> {
        let mut next = self.starts.iter().copied().chain([self.length]).peekable();
        let mut start = 0;
        let at = |position: usize| {
            while let Some(first) = next.next_if(|&first| first <= position) {
                start = first;
            }
            start as i64
        };
        (0..count).map(at).collect()
    }

    /// Number of targets that contribute to the loss.
    pub fn target_count(&self) -> u64 {
        let own = self.targets.iter().filter(|&&target| target != IGNORED).count() as u64;
        own + self.pair.as_ref().map_or(0, |pair| pair.other.target_count())
    }
}

/// A rank's rows of a global batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The requested rows in order.
    pub rows: Vec<Row>,
    /// Number of targets in them.
    pub own_targets: u64,
    /// Rows of the global batch that are not padding, which the last batch may
    /// have.
    pub real_rows: usize,
    /// Number of the first row of the global batch in the run.
    pub first_row: u64,
}

/// A row under construction: one token more than inputs, because the last is
/// only a target.
pub(super) struct RowBuilder {
    tokens: Vec<u32>,
    mask: Vec<bool>,
    starts: Vec<usize>,
    size: usize,
}

impl RowBuilder {
    pub(super) fn new(size: usize) -> Self {
        let (tokens, mask) = (Vec::with_capacity(size + 1), Vec::with_capacity(size + 1));
        Self { tokens, mask, starts: Vec::new(), size }
    }

    /// A row that holds these tokens.
    pub(super) fn of(tokens: &[u32], mask: &[bool], size: usize) -> Self {
        Self { tokens: tokens.to_vec(), mask: mask.to_vec(), starts: vec![0], size }
    }

    /// Appends a part of a document.
    pub(super) fn push(&mut self, sample: &Sample, from: usize, take: usize) {
        let at = self.tokens.len();
        // In the middle of a row, the rest of a document is a separate one.
        if (from == 0 || at > 0) && at < self.size {
            self.starts.push(at);
        }
        self.tokens.extend_from_slice(&sample.tokens[from..from + take]);
        self.mask.extend_from_slice(&sample.mask[from..from + take]);
        // Another document precedes its first token.
        if let Some(first) = self.mask.get_mut(at).filter(|_| at > 0) {
            *first = false;
        }
    }

    pub(super) fn finish(self, pad: u32) -> Row {
        let Self { tokens, mask, starts, size } = self;
        let length = tokens.len().saturating_sub(1);
        let mut row = Row { starts, length, ..Row::empty(size, pad) };
        row.inputs[..length].copy_from_slice(&tokens[..length]);
        for (at, target) in row.targets[..length].iter_mut().enumerate() {
            if mask[at + 1] {
                *target = i64::from(tokens[at + 1]);
            }
        }
        row
    }
}
