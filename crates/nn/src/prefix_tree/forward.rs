//! Forward pass over many sequences with many adapters at once.
//!
//! Sequences with a common prefix share its computation, and nothing is padded.
//! A sequence's numbers have the same bits whatever it is batched with.

use std::sync::Arc;

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Tensor, no_grad};

use super::{PrefixTree, TreeChunk};
use crate::batch_adapters::{AdapterRows, AdapterSpec, BatchAdapters, group_by_adapter};
use crate::decoder::{ActivationCheckpointing, Decoder, Input};
use crate::error::NnError;

/// A sequence and its adapter.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// At least one token.
    pub tokens: &'a [u32],
    /// An index into the list of adapters.
    pub adapter: usize,
}

/// Hidden states of sequences.
pub struct PrefixTreeOutput<'a> {
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
    pub fn forward_prefix_tree<'a>(
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
        if sequences.is_empty() {
            return Err(NnError::EmptyPrompt { row: 0 });
        }
        for (row, &Sequence { tokens, adapter }) in sequences.iter().enumerate() {
            if tokens.is_empty() {
                return Err(NnError::EmptyPrompt { row });
            }
            if adapter >= adapters {
                return Err(NnError::UnknownAdapter { sequence: row, adapter, count: adapters });
            }
        }
        let lengths = sequences.iter().map(|sequence| sequence.tokens.len());
        self.check_length(&[lengths.max().unwrap_or(0)], None, 0)?;
        let given: Vec<(&[u32], usize)> =
            sequences.iter().map(|sequence| (sequence.tokens, sequence.adapter)).collect();
        Ok(PrefixTree::new(&given))
    }
}

impl PrefixTreeOutput<'_> {
    /// The number of tokens computed; those of shared prefixes count once.
    pub fn token_count(&self) -> usize {
        self.adapter_of_token.len()
    }

    /// Logits `[positions, vocabulary]` at `(sequence, position)`.
    pub fn logits(&self, positions: &[(usize, usize)]) -> Result<DTensor, NnError> {
        no_grad(|| {
            let rows = self.rows(positions)?;
            let hidden = self.decoder.select_positions(&self.hidden, &rows)?;
            let groups: Vec<AdapterRows<'_>> =
                group_by_adapter(rows.iter().map(|(row, _)| self.adapters[self.adapter_of_token[*row]]));
            self.decoder.logits(&hidden, &groups[..])
        })
    }

    /// The hidden states of each sequence averaged over its tokens,
    /// `[sequences, hidden]`, in f32.
    pub fn mean_hidden(&self, sequences: &[usize]) -> Result<DTensor, NnError> {
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
                [] => {
                    let none = Tensor::zeros(DType::F32, &[0, self.hidden.shape()[2]], self.hidden.device())?;
                    let layout = Layout::replicated(self.decoder.plan().mesh());
                    Ok(DTensor::distribute(self.decoder.dist(), &none, layout)?)
                }
                means => Ok(DTensor::cat(&means.iter().collect::<Vec<_>>(), 0)?),
            }
        })
    }

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
