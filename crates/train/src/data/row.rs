//! Rows: what a model is given, and what it should have said.

use weightloom_nn::IGNORED;

use super::sample::Sample;

/// A row. All rows have the same length; what is behind the tokens is filled
/// up, and does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the model is given.
    pub inputs: Vec<u32>,
    /// For each input, the token that follows it, or [`IGNORED`].
    pub targets: Vec<i64>,
    /// Where documents begin in `inputs`. A row that begins inside of a
    /// document does not have 0 among them.
    pub starts: Vec<usize>,
    /// How many of the inputs are tokens of documents.
    pub length: usize,
}

impl Row {
    /// A row without tokens.
    pub(crate) fn empty(size: usize, pad: u32) -> Self {
        Self { inputs: vec![pad; size], targets: vec![IGNORED; size], starts: Vec::new(), length: 0 }
    }

    /// How many targets count.
    pub fn counted(&self) -> u64 {
        self.targets.iter().filter(|&&target| target != IGNORED).count() as u64
    }
}

/// The rows of one step that a rank computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The rows that were asked for, in their order.
    pub rows: Vec<Row>,
    /// Targets that count in them.
    pub targets_of_mine: u64,
    /// Rows of the whole batch that have tokens. The others fill it up at the
    /// end of the last epoch.
    pub real_rows: usize,
    /// The number of the first row of the whole batch, from the beginning of
    /// the run.
    pub first_row: u64,
}

/// A row in the making: one token more than it has inputs, since the last is a
/// target alone.
pub(super) struct RowBuilder {
    tokens: Vec<u32>,
    counts: Vec<bool>,
    starts: Vec<usize>,
    size: usize,
}

impl RowBuilder {
    pub(super) fn new(size: usize) -> Self {
        let (tokens, counts) = (Vec::with_capacity(size + 1), Vec::with_capacity(size + 1));
        Self { tokens, counts, starts: Vec::new(), size }
    }

    /// Appends a stretch of a document.
    pub(super) fn push(&mut self, sample: &Sample, from: usize, take: usize) {
        if from == 0 && self.tokens.len() < self.size {
            self.starts.push(self.tokens.len());
        }
        self.tokens.extend_from_slice(&sample.tokens[from..from + take]);
        self.counts.extend_from_slice(&sample.counts[from..from + take]);
    }

    pub(super) fn finish(self, pad: u32) -> Row {
        let Self { tokens, counts, starts, size } = self;
        let length = tokens.len().saturating_sub(1);
        let mut row = Row { starts, length, ..Row::empty(size, pad) };
        row.inputs[..length].copy_from_slice(&tokens[..length]);
        for (at, target) in row.targets[..length].iter_mut().enumerate() {
            if counts[at + 1] {
                *target = i64::from(tokens[at + 1]);
            }
        }
        row
    }
}
