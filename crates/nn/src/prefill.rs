//! Computing prompts in chunks.
//!
//! Activations of a whole batch of long prompts would need far more memory than
//! their keys and values. A chunk bounds them, and between chunks a caller can
//! give up. A token attends to the same keys in the same order whatever the
//! chunks, so results have the same bits.

use std::ops::Range;
use std::sync::Arc;

use weightloom_dtensor::DTensor;
use weightloom_layout::DType;
use weightloom_tensor::no_grad;

use crate::batch_adapters::{AdapterSpec, BatchAdapters, group_by_adapter};
use crate::cache::Cache;
use crate::decoder::{ActivationCheckpointing, Decoder, Input};
use crate::error::NnError;
use crate::prefix_tree::{PrefixTree, TreeChunk};
use crate::sequence::Sequence;

/// Tokens of a chunk: enough for efficient matrix products.
const CHUNK_TOKENS: Range<usize> = 64..512;

/// Multiplications of a chunk, about a second on a small machine: the longest
/// that a request which was given up computes on.
const CHUNK_MULTIPLICATIONS: u64 = 1 << 36;

/// Prompts in progress. Shared prefixes are computed once.
pub(crate) struct Prefill<'a> {
    decoder: &'a Decoder,
    adapters: Vec<Option<AdapterSpec<'a>>>,
    tree: Arc<PrefixTree>,
    /// The adapter of each token of the tree.
    adapter_of_token: Vec<usize>,
    positions: Vec<usize>,
    /// Keys and values of the tokens computed so far, as one row.
    cache: Cache,
    computed: usize,
    chunk: usize,
}

/// The hidden states of a chunk of tokens.
pub(crate) struct PrefillChunk {
    /// The tokens in the row of all tokens of the tree.
    pub(crate) range: Range<usize>,
    /// `[tokens, 1, hidden]`.
    hidden: DTensor,
}

impl<'a> Prefill<'a> {
    /// Prepares to compute sequences, each with one of the adapters. `capacity`
    /// is the number of positions to reserve if there is only one sequence.
    pub(crate) fn new(
        decoder: &'a Decoder,
        sequences: &[Sequence<'_>],
        adapters: Vec<Option<AdapterSpec<'a>>>,
        capacity: usize,
    ) -> Result<Self, NnError> {
        let tree = decoder.prefix_tree(sequences, adapters.len())?;
        let vocabulary = decoder.config().vocabulary;
        if let Some(&token) = tree.tokens().iter().find(|token| **token as usize >= vocabulary) {
            return Err(NnError::UnknownToken { token, vocabulary });
        }
        let tokens = tree.tokens().len();
        let capacity = if sequences.len() == 1 { capacity.max(tokens) } else { tokens };
        let per_token = decoder.config().active_parameters().max(1);
        let chunk = usize::try_from(CHUNK_MULTIPLICATIONS / per_token).unwrap_or(usize::MAX);
        Ok(Self {
            decoder,
            adapters,
            adapter_of_token: tree.adapters().collect(),
            positions: tree.positions(),
            tree: Arc::new(tree),
            cache: Cache::new(1, capacity),
            computed: 0,
            chunk: chunk.clamp(CHUNK_TOKENS.start, CHUNK_TOKENS.end),
        })
    }

    /// Computes at most this many tokens at a time.
    pub(crate) fn set_chunk(&mut self, tokens: usize) {
        self.chunk = tokens.max(1);
    }

    /// The token that a sequence ends with, in the row of all tokens.
    pub(crate) fn last_token(&self, sequence: usize) -> usize {
        self.tree.spans(sequence).last().map_or(0, |span| span.end - 1)
    }

    /// The tokens of a sequence in the row of all tokens, in ascending order.
    pub(crate) fn tokens(&self, sequence: usize) -> impl Iterator<Item = usize> {
        self.tree.spans(sequence).into_iter().flatten()
    }

    /// Computes the next chunk; `None` after the last.
    pub(crate) fn next_chunk(&mut self) -> Result<Option<PrefillChunk>, NnError> {
        let range = self.computed..self.tree.tokens().len().min(self.computed.saturating_add(self.chunk));
        if range.is_empty() {
            return Ok(None);
        }
        let adapters = self.adapter_of_token[range.clone()].iter().map(|&adapter| self.adapters[adapter]);
        let groups = group_by_adapter(adapters);
        let rows: Vec<&[u32]> = self.tree.tokens()[range.clone()].chunks(1).collect();
        let chunk = TreeChunk::new(Arc::clone(&self.tree), range.clone());
        let positions = self.positions[range.clone()].to_vec();
        let hidden = no_grad(|| {
            let tokens = self.decoder.tokens(&rows)?;
            let positions = self.decoder.position_info(&tokens, positions)?.with_tree(chunk);
            let context = self.decoder.context(BatchAdapters::Groups(&groups));
            self.decoder.forward_layers(
                &context,
                Input::Tokens(tokens),
                Arc::new(positions),
                Some(&mut self.cache),
                ActivationCheckpointing::Off,
            )
        })?;
        self.cache.advance(std::iter::once(range.len()));
        self.computed = range.end;
        Ok(Some(PrefillChunk { range, hidden }))
    }

    /// Hidden states `[tokens, hidden]` of tokens of a chunk.
    pub(crate) fn select(&self, chunk: &PrefillChunk, tokens: &[usize]) -> Result<DTensor, NnError> {
        let positions: Vec<(usize, usize)> =
            tokens.iter().map(|token| (token - chunk.range.start, 0)).collect();
        no_grad(|| self.decoder.select_positions(&chunk.hidden, &positions))
    }

    /// Logits of tokens with these hidden states, row after row.
    pub(crate) fn logits(&self, hidden: &DTensor, tokens: &[usize]) -> Result<Vec<f32>, NnError> {
        let groups =
            group_by_adapter(tokens.iter().map(|token| self.adapters[self.adapter_of_token[*token]]));
        no_grad(|| {
            let logits = self.decoder.logits(hidden, &groups[..])?;
            Ok(logits.cast(DType::F32)?.full_tensor()?.to_vec::<f32>()?)
        })
    }

    /// Makes a cache with a row for each sequence.
    pub(crate) fn into_cache(self, capacity: usize) -> Result<Cache, NnError> {
        let Self { tree, cache, .. } = self;
        let sequences = tree.sequence_count();
        if sequences == 1 {
            return Ok(cache);
        }
        let spans: Vec<Vec<Range<usize>>> = (0..sequences).map(|sequence| tree.spans(sequence)).collect();
        no_grad(|| Cache::from_row(cache, &spans, capacity))
    }
}
