//! Decoding with a key-value cache.

use std::ops::ControlFlow;

use weightloom_dtensor::DTensor;
use weightloom_layout::DType;
use weightloom_tensor::no_grad;

use crate::batch_adapters::{AdapterRows, AdapterSpec, BatchAdapters, group_by_adapter};
use crate::cache::Cache;
use crate::decoder::{Decoder, ForwardArgs, Input};
use crate::decoding::Decoding;
use crate::error::NnError;
use crate::model::Check;
use crate::prefill::Prefill;
use crate::sequence::Sequence;

/// Rows whose keys and values are in a cache.
pub(crate) struct CachedDecoding<'a> {
    decoder: &'a Decoder,
    /// The prompts, until they are computed.
    prefill: Option<Prefill<'a>>,
    prompts: usize,
    /// The adapter of each row.
    adapters: Vec<Option<AdapterSpec<'a>>>,
    cache: Cache,
    /// Positions to reserve for each row.
    capacity: usize,
}

impl<'a> CachedDecoding<'a> {
    pub(crate) fn new(
        decoder: &'a Decoder,
        prompts: &[Sequence<'_>],
        adapters: Vec<Option<AdapterSpec<'a>>>,
        capacity: usize,
    ) -> Result<Self, NnError> {
        let of_rows = prompts.iter().map(|prompt| adapters.get(prompt.adapter).copied().flatten()).collect();
        let prefill = Prefill::new(decoder, prompts, adapters, capacity)?;
        Ok(Self {
            decoder,
            prefill: Some(prefill),
            prompts: prompts.len(),
            adapters: of_rows,
            cache: Cache::default(),
            capacity,
        })
    }
}

impl Decoding for CachedDecoding<'_> {
    fn set_prefill_chunk(&mut self, tokens: usize) {
        if let Some(prefill) = &mut self.prefill {
            prefill.set_chunk(tokens);
        }
    }

    fn prefill(&mut self, check: Check<'_>) -> Result<ControlFlow<(), Vec<f32>>, NnError> {
        let Some(mut prefill) = self.prefill.take() else { return Ok(ControlFlow::Continue(Vec::new())) };
        // Several sequences may end with the same token of the tree.
        let last: Vec<usize> = (0..self.prompts).map(|prompt| prefill.last_token(prompt)).collect();
        let mut wanted = last.clone();
        wanted.sort_unstable();
        wanted.dedup();
        let mut hidden = Vec::new();
        loop {
            if check().is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let Some(chunk) = prefill.next_chunk()? else { break };
            let inside: Vec<usize> =
                wanted.iter().copied().filter(|token| chunk.range.contains(token)).collect();
            if !inside.is_empty() {
                hidden.push(prefill.select(&chunk, &inside)?);
            }
        }
        let hidden = no_grad(|| DTensor::cat(&hidden.iter().collect::<Vec<_>>(), 0))?;
        let logits = prefill.logits(&hidden, &wanted)?;
        let vocabulary = self.decoder.config().vocabulary;
        let logits = last.iter().flat_map(|token| {
            let at = wanted.binary_search(token).expect("all last tokens are wanted") * vocabulary;
            logits[at..at + vocabulary].iter().copied()
        });
        let logits = logits.collect();
        self.cache = prefill.into_cache(self.capacity)?;
        Ok(ControlFlow::Continue(logits))
    }

    fn step(&mut self, tokens: &[u32]) -> Result<Vec<f32>, NnError> {
        no_grad(|| {
            let groups: Vec<AdapterRows<'_>> = group_by_adapter(self.adapters.iter().copied());
            let rows: Vec<&[u32]> = tokens.chunks(1).collect();
            let input = Input::Tokens(self.decoder.tokens(&rows)?);
            let adapters = BatchAdapters::Groups(&groups);
            let args = ForwardArgs { cache: Some(&mut self.cache), adapters, ..ForwardArgs::default() };
            let hidden = self.decoder.forward(input, args)?;
            let last: Vec<(usize, usize)> = (0..rows.len()).map(|row| (row, 0)).collect();
            let logits = self.decoder.logits(&self.decoder.select_positions(&hidden, &last)?, adapters)?;
            Ok(logits.cast(DType::F32)?.full_tensor()?.to_vec::<f32>()?)
        })
    }

    fn retain_rows(&mut self, rows: &[usize]) -> Result<(), NnError> {
        no_grad(|| self.cache.retain_rows(rows))?;
        self.adapters = rows.iter().map(|row| self.adapters[*row]).collect();
        Ok(())
    }
}
