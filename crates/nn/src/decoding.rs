//! Computing the logits of the next token, one token of each row at a time.

use std::ops::ControlFlow;

use crate::batch_adapters::AdapterSpec;
use crate::error::NnError;
use crate::model::{Check, Model};
use crate::sequence::{Sequence, check_sequences};

/// Rows that grow token by token.
pub trait Decoding {
    /// Computes at most this many tokens of the prompts at a time. Results are the
    /// same.
    fn set_prefill_chunk(&mut self, tokens: usize) {
        let _ = tokens;
    }

    /// The logits after each prompt, row after row. Calls `check` between pieces of
    /// work; if it breaks, everything is as it was before.
    fn prefill(&mut self, check: Check<'_>) -> Result<ControlFlow<(), Vec<f32>>, NnError>;

    /// Appends a token to each row, and returns the logits of the next, row after row.
    fn step(&mut self, tokens: &[u32]) -> Result<Vec<f32>, NnError>;

    /// Keeps only the given rows, in the given order.
    fn retain_rows(&mut self, rows: &[usize]) -> Result<(), NnError>;
}

/// Decoding that computes every text again for each of its tokens.
pub(crate) struct RecomputedDecoding<'a> {
    model: &'a dyn Model,
    rows: Vec<(Vec<u32>, Option<AdapterSpec<'a>>)>,
}

impl<'a> RecomputedDecoding<'a> {
    pub(crate) fn new(
        model: &'a dyn Model,
        prompts: &[Sequence<'_>],
        adapters: &[Option<AdapterSpec<'a>>],
    ) -> Result<Self, NnError> {
        check_sequences(prompts, adapters.len())?;
        let row = |prompt: &Sequence<'_>| (prompt.tokens.to_vec(), adapters[prompt.adapter]);
        Ok(Self { model, rows: prompts.iter().map(row).collect() })
    }

    fn logits(&self, (tokens, adapter): &(Vec<u32>, Option<AdapterSpec<'_>>)) -> Result<Vec<f32>, NnError> {
        let hidden = self.model.forward_alone(tokens, *adapter)?;
        self.model.logits_at(&hidden, &[(0, tokens.len() - 1)], *adapter)
    }
}

impl Decoding for RecomputedDecoding<'_> {
    fn prefill(&mut self, check: Check<'_>) -> Result<ControlFlow<(), Vec<f32>>, NnError> {
        let mut all = Vec::new();
        for row in &self.rows {
            if check().is_break() {
                return Ok(ControlFlow::Break(()));
            }
            all.extend(self.logits(row)?);
        }
        Ok(ControlFlow::Continue(all))
    }

    fn step(&mut self, tokens: &[u32]) -> Result<Vec<f32>, NnError> {
        let mut all = Vec::new();
        for (row, token) in self.rows.iter_mut().zip(tokens) {
            row.0.push(*token);
        }
        for row in &self.rows {
            all.extend(self.logits(row)?);
        }
        Ok(all)
    }

    fn retain_rows(&mut self, rows: &[usize]) -> Result<(), NnError> {
        self.rows = rows.iter().map(|row| self.rows[*row].clone()).collect();
        Ok(())
    }
}
