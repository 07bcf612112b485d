//! Forward pass over many sequences with many adapters at once.
//!
//! Sequences with a common prefix share its computation, and nothing is padded.
//! A sequence's numbers have the same bits whatever it is batched with.

use std::sync::Arc;

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::no_grad;

use super::{PrefixTree, TreeChunk};
use crate::batch_adapters::{AdapterRows, AdapterSpec, BatchAdapters, group_by_adapter};
use crate::decoder::{ActivationCheckpointing, Decoder, Input};
use crate::error::NnError;
use crate::sequence::{Sequence, SequenceOutput, check_sequences, empty};

/// Hidden states of sequences.
pub(crate) struct PrefixTreeOutput<'a> {
    decoder: &'a Decoder,
    adapters: Vec<Option<AdapterSpec<'a>>>,
    tree: Arc<PrefixTree>,
    /// The adapter of each token.
    adapter_of_token: Vec<usize>,
    /// `[tokens, 1, hidden]`.
    hidden: DTensor,
}

impl Decoder {
    /// Runs sequences, each with one of the adapters, as one row of tokens
    /// without padding. The caller bounds memory by how many it passes.
    pub(crate) fn forward_prefix_tree<'a>(
        &'a self,
        sequences: &[Sequence<'_>],
        adapters: &[Option<AdapterSpec<'a>>],
    ) -> Result<PrefixTreeOutput<'a>, NnError> {
        let tree = self.prefix_tree(sequences, adapters.len())?;
        let adapter_of_token: Vec<usize> = tree.adapters().collect();
        let groups = group_by_adapter(adapter_of_token.iter().map(|&adapter| adapters[adapter]));
        let tree = Arc::new(tree);
        let rows: Vec<&[u32]> = tree.tokens().chunks(1).collect();
        let hidden = no_grad(|| {
            let tokens = self.tokens(&rows)?;
            let chunk = TreeChunk::whole(Arc::clone(&tree));
            let positions = self.position_info(&tokens, tree.positions())?.with_tree(chunk);
            let context = self.context(BatchAdapters::Groups(&groups));
            self.forward_layers(
                &context,
                Input::Tokens(tokens),
                Arc::new(positions),
                None,
                ActivationCheckpointing::Off,
            )
        })?;
        Ok(PrefixTreeOutput { decoder: self, adapters: adapters.to_vec(), tree, adapter_of_token, hidden })
    }

    /// The tree of sequences, each with one of some adapters.
    pub(crate) fn prefix_tree(
        &self,
        sequences: &[Sequence<'_>],
        adapters: usize,
    ) -> Result<PrefixTree, NnError> {
        check_sequences(sequences, adapters)?;
        let lengths = sequences.iter().map(|sequence| sequence.tokens.len());
        self.check_length(&[lengths.max().unwrap_or(0)], None, 0)?;
        let given: Vec<(&[u32], usize)> =
            sequences.iter().map(|sequence| (sequence.tokens, sequence.adapter)).collect();
        Ok(PrefixTree::new(&given))
    }
}

impl SequenceOutput for PrefixTreeOutput<'_> {
    fn token_count(&self) -> usize {
        self.adapter_of_token.len()
    }

    fn logits(&self, positions: &[(usize, usize)]) -> Result<DTensor, NnError> {
        no_grad(|| {
            let rows = self.rows(positions)?;
            let hidden = self.decoder.select_positions(&self.hidden, &rows)?;
            let groups: Vec<AdapterRows<'_>> =
                group_by_adapter(rows.iter().map(|(row, _)| self.adapters[self.adapter_of_token[*row]]));
            self.decoder.logits(&hidden, &groups[..])
        })
    }

    fn mean_hidden(&self, sequences: &[usize]) -> Result<DTensor, NnError> {
        no_grad(|| {
            let mut means = Vec::with_capacity(sequences.len());
            for &sequence in sequences {
                let length = self.tree.length(sequence).unwrap_or(0);
                let positions: Vec<(usize, usize)> =
                    (0..length.max(1)).map(|position| (sequence, position)).collect();
                let hidden = self.decoder.select_positions(&self.hidden, &self.rows(&positions)?)?;
                let mean = hidden.cast(DType::F32)?.mean(&[0])?;
                means.push(mean.reshape(&Shape::new(&[1, hidden.shape()[1]])?)?);
            }
            match &means[..] {
                [] => empty(self.decoder, self.hidden.shape()[2]),
                means => Ok(DTensor::cat(&means.iter().collect::<Vec<_>>(), 0)?),
            }
        })
    }
}

impl PrefixTreeOutput<'_> {
    /// The rows of `hidden` at `(sequence, position)`.
    fn rows(&self, positions: &[(usize, usize)]) -> Result<Vec<(usize, usize)>, NnError> {
        let row = |&(sequence, position): &(usize, usize)| {
            let length = self.tree.length(sequence).unwrap_or(0);
            let mut before = 0;
            let spans = if position < length { self.tree.spans(sequence) } else { Vec::new() };
            let found = spans.into_iter().find_map(|span| {
                let at = position - before;
                before += span.len();
                (at < span.len()).then_some((span.start + at, 0))
            });
            found.ok_or(NnError::UnknownPosition { sequence, length, position })
        };
        positions.iter().map(row).collect()
    }
}
