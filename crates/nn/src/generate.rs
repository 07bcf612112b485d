//! Text generation, one token of each row at a time.

use std::ops::ControlFlow;

use crate::batch_adapters::{AdapterRows, AdapterSpec, BatchAdapters, group_by_adapter};
use crate::decoding::Decoding;
use crate::error::NnError;
use crate::model::Model;
use crate::sampling::{Sampler, Sampling};
use crate::score::{TokenLogprobs, token_logprobs};
use crate::sequence::Sequence;

/// Cache positions reserved for new tokens at first; longer texts grow the cache.
const MAX_RESERVED_TOKENS: usize = 4096;

/// What to generate.
#[derive(Clone, Debug, Default)]
pub struct GenerateRequest {
    /// Prompts of at least one token each; lengths may differ.
    pub prompts: Vec<Vec<u32>>,
    /// The maximum number of tokens to add to each prompt.
    pub max_new_tokens: usize,
    /// Tokens that end a row.
    pub stop_tokens: Vec<u32>,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// Report the log-probability of each token, and of this many of the most
    /// likely ones at its position.
    pub top_logprobs: Option<usize>,
}

/// A token that was generated.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// The row it belongs to.
    pub row: usize,
    /// The token.
    pub id: u32,
    /// Its log-probabilities, if requested.
    pub logprobs: Option<TokenLogprobs>,
    /// Set if the row ends with this token.
    pub finish: Option<FinishReason>,
}

/// Why a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was generated.
    Stop,
    /// The row reached its maximum length.
    Length,
}

/// All tokens that were added to a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedSequence {
    /// The tokens, including a final stop token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
}

/// Generation in progress.
pub struct Generation<'a> {
    model: &'a dyn Model,
    /// The adapter of each row.
    adapters: Vec<Option<AdapterSpec<'a>>>,
    request: GenerateRequest,
    sampler: Sampler,
    /// The samplers of rows that have their own.
    row_samplers: Vec<Sampler>,
    /// The rows in progress, after prefill.
    decoding: Option<Box<dyn Decoding + 'a>>,
    /// Positions to reserve for each row.
    capacity: usize,
    prefill_chunk: Option<usize>,
    /// The logits after the prompts, until the first step uses them.
    prefilled: Option<Vec<f32>>,
    /// The rows in progress, in the order of `decoding`.
    live: Vec<usize>,
    added: Vec<Vec<u32>>,
    finished: Vec<Option<FinishReason>>,
}

impl<'a> Generation<'a> {
    /// Prepares generation; the first [`step`](Self::step) computes. Rows with
    /// the same adapter are fastest next to each other.
    pub fn new(
        model: &'a dyn Model,
        adapters: impl Into<BatchAdapters<'a>>,
        request: GenerateRequest,
    ) -> Result<Self, NnError> {
        let adapters = adapters.into();
        adapters.check(request.prompts.len())?;
        let adapters = match adapters {
            BatchAdapters::Uniform(adapter) => vec![adapter; request.prompts.len()],
            BatchAdapters::Groups(groups) => {
                groups.iter().flat_map(|group| std::iter::repeat_n(group.adapter, group.rows)).collect()
            }
        };
        if let Some(row) = request.prompts.iter().position(Vec::is_empty) {
            return Err(NnError::EmptyPrompt { row });
        }
        let longest = request.prompts.iter().map(Vec::len).max().unwrap_or(0);
        if let Some(available) = model.definition().max_positions().filter(|most| longest > *most) {
            return Err(NnError::TooLong { needed: longest, available });
        }
        let sampler = Sampler::new(request.sampling.clone())?;
        let rows = request.prompts.len();
        let capacity = longest + request.max_new_tokens.min(MAX_RESERVED_TOKENS);
        let finish = (request.max_new_tokens == 0).then_some(FinishReason::Length);
        Ok(Self {
            model,
            adapters,
            sampler,
            row_samplers: Vec::new(),
            decoding: None,
            capacity,
            prefill_chunk: None,
            prefilled: None,
            live: (0..rows).collect(),
            added: vec![Vec::new(); rows],
            finished: vec![finish; rows],
            request,
        })
    }

    /// Samples each row by its own parameters, in the order of the prompts. What
    /// a row draws then depends on its own seed, and not on its place in the
    /// batch. Rows beyond the end of `sampling` keep those of the request.
    pub fn with_row_sampling(
        mut self,
        sampling: impl IntoIterator<Item = Sampling>,
    ) -> Result<Self, NnError> {
        let samplers: Result<Vec<Sampler>, _> = sampling.into_iter().map(Sampler::new).collect();
        self.row_samplers = samplers?;
        Ok(self)
    }

    /// Computes at most this many tokens of the prompts at a time, instead of a
    /// number that depends on the size of the model. Results are the same.
    #[must_use]
    pub fn with_prefill_chunk(mut self, tokens: usize) -> Self {
        self.prefill_chunk = Some(tokens);
        self
    }

    /// Computes the prompts in chunks, and calls `check` before each: it may
    /// break, which leaves the generation as it was before. The first step
    /// prefills if this was not called.
    pub fn prefill(
        &mut self,
        mut check: impl FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, NnError> {
        if self.is_done() || self.decoding.is_some() {
            return Ok(ControlFlow::Continue(()));
        }
        let groups: Vec<AdapterRows<'a>> = group_by_adapter(self.live.iter().map(|row| self.adapters[*row]));
        let numbers = groups.iter().enumerate();
        let numbers = numbers.flat_map(|(number, group)| std::iter::repeat_n(number, group.rows));
        let prompts: Vec<Sequence<'_>> = self
            .live
            .iter()
            .zip(numbers)
            .map(|(row, adapter)| Sequence { tokens: &self.request.prompts[*row], adapter })
            .collect();
        let adapters = groups.iter().map(|group| group.adapter).collect();
        let mut decoding = self.model.decoding(&prompts, adapters, self.capacity)?;
        if let Some(tokens) = self.prefill_chunk {
            decoding.set_prefill_chunk(tokens);
        }
        match decoding.prefill(&mut check)? {
            ControlFlow::Break(()) => Ok(ControlFlow::Break(())),
            ControlFlow::Continue(logits) => {
                (self.prefilled, self.decoding) = (Some(logits), Some(decoding));
                Ok(ControlFlow::Continue(()))
            }
        }
    }

    /// Whether all rows have ended.
    pub fn is_done(&self) -> bool {
        self.finished.iter().all(Option::is_some)
    }

    /// Ends a row early.
    pub fn finish(&mut self, row: usize) {
        if let Some(finished) = self.finished.get_mut(row) {
            *finished = finished.or(Some(FinishReason::Stop));
        }
    }

    /// Generates the next token of each row that has not ended.
    pub fn step(&mut self) -> Result<Vec<GeneratedToken>, NnError> {
        if self.is_done() {
            return Ok(Vec::new());
        }
        if self.decoding.is_none() {
            let _ = self.prefill(|| ControlFlow::Continue(()))?;
        }
        let logits = match self.prefilled.take() {
            Some(logits) => logits,
            None => {
                self.drop_finished_rows()?;
                self.decode()?
            }
        };
        let vocabulary = self.model.definition().vocabulary();
        let mut tokens = Vec::new();
        for (&row, logits) in self.live.iter().zip(logits.chunks_exact(vocabulary)) {
            if self.finished[row].is_some() {
                // Still in the batch, so it needs a token; any will do.
                self.added[row].push(0);
                continue;
            }
            let mut adjusted = logits.to_vec();
            let drawn = self.added[row].len() as u64;
            // A row with its own seed has its own stream of random numbers.
            let (sampler, stream) = match self.row_samplers.get(row) {
                Some(own) => (own, 0),
                None => (&self.sampler, row as u64),
            };
            let before: Vec<u32> = if sampler.sampling().repetition_penalty == 1.0 {
                Vec::new()
            } else {
                self.request.prompts[row].iter().chain(&self.added[row]).copied().collect()
            };
            let id = sampler.sample(&mut adjusted, stream, drawn, &before);
            let logit = adjusted.get(id as usize).copied().unwrap_or(f32::NAN);
            if !logit.is_finite() {
                return Err(NnError::NotFinite { row, found: logit.to_string() });
            }
            self.added[row].push(id);
            let finish = self.finish_reason(row, id);
            self.finished[row] = finish;
            let logprobs = self.request.top_logprobs.map(|count| token_logprobs(logits, id, count));
            tokens.push(GeneratedToken { row, id, logprobs, finish });
        }
        Ok(tokens)
    }

    /// The number of tokens of a row.
    fn length(&self, row: usize) -> usize {
        self.request.prompts[row].len() + self.added[row].len()
    }

    fn finish_reason(&self, row: usize, id: u32) -> Option<FinishReason> {
        let full = self.model.definition().max_positions().is_some_and(|most| self.length(row) >= most);
        if self.request.stop_tokens.contains(&id) {
            Some(FinishReason::Stop)
        } else if self.added[row].len() >= self.request.max_new_tokens || full {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Removes finished rows. This may copy the others, so it waits until a quarter
    /// has finished or positions run out.
    fn drop_finished_rows(&mut self) -> Result<(), NnError> {
        let ended = self.live.iter().filter(|row| self.finished[**row].is_some()).count();
        let most = self.model.definition().max_positions();
        let full = most.is_some_and(|most| self.live.iter().any(|row| self.length(*row) > most));
        if ended == 0 || (ended * 4 < self.live.len() && !full) {
            return Ok(());
        }
        let kept: Vec<usize> =
            (0..self.live.len()).filter(|index| self.finished[self.live[*index]].is_none()).collect();
        if let Some(decoding) = &mut self.decoding {
            decoding.retain_rows(&kept)?;
        }
        self.live = kept.into_iter().map(|index| self.live[index]).collect();
        Ok(())
    }

    /// Computes the last token of each row, and the logits of the next.
    fn decode(&mut self) -> Result<Vec<f32>, NnError> {
        let last = |row: &usize| self.added[*row].last().copied().unwrap_or(0);
        let tokens: Vec<u32> = self.live.iter().map(last).collect();
        match &mut self.decoding {
            Some(decoding) => decoding.step(&tokens),
            None => Ok(Vec::new()),
        }
    }

    /// Generates until all rows have ended.
    pub fn run(mut self) -> Result<Vec<GeneratedSequence>, NnError> {
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.request.prompts.len()];
        while !self.is_done() {
            for token in self.step()? {
                rows[token.row].push(token.id);
            }
        }
        let finishes = self.finished.into_iter().map(|finish| finish.unwrap_or(FinishReason::Length));
        Ok(rows
            .into_iter()
            .zip(finishes)
            .map(|(tokens, finish)| GeneratedSequence { tokens, finish })
            .collect())
    }
}
