//! Forward passes over sequences, in batches over all variants.

use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Layout};
use weightloom_nn::{Model, NnError, Sequence, SequenceOutput};
use weightloom_tensor::{Tensor, no_grad};

use super::batch::{BatchItem, batch_ends, sort};
use super::engine::Engine;
use super::pending_rows::PendingRows;
use super::request::{ScoreOutput, ScoreRequest};
use super::schedule::{Variants, trim_memory};
use super::variant::Side;
use crate::backend::AnswerSink;

/// Rows of logits held at once: enough to amortize output the output
/// projection.
const LOGIT_ROWS: usize = 128;

/// A sequence and the index of the variant that scores it.
type SequenceKey = (Arc<[u32]>, usize);

/// A sequence and the requests that need it.
type Scored<'a> = (&'a SequenceKey, &'a Vec<usize>);

/// Scores requests in one pass over some variants.
pub(super) struct ScoringPass<'a> {
    engine: &'a Engine,
    variants: &'a Variants,
    /// Requests with the indices of their questions.
    requests: &'a [(usize, &'a ScoreRequest)],
    /// Requests by sequence.
    sequences: BTreeMap<SequenceKey, Vec<usize>>,
    pending: PendingRows<SequenceKey>,
}

impl<'a> ScoringPass<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        variants: &'a Variants,
        requests: &'a [(usize, &'a ScoreRequest)],
    ) -> Self {
        let mut sequences: BTreeMap<SequenceKey, Vec<usize>> = BTreeMap::new();
        let mut pending = PendingRows::default();
        for (index, (_, request)) in requests.iter().enumerate() {
            for key in keys(variants, request) {
                if matches!(request.output, ScoreOutput::Divergence(_)) {
                    pending.expect(&key);
                }
                let users = sequences.entry(key).or_default();
                if users.last() != Some(&index) {
                    users.push(index);
                }
            }
        }
        Self { engine, variants, requests, sequences, pending }
    }

    /// Answers all requests.
    pub(super) fn run(mut self, max_tokens: usize, sink: &mut dyn AnswerSink) -> Result<(), NnError> {
        let sequences = std::mem::take(&mut self.sequences);
        let mut all: Vec<Scored<'_>> = sequences.iter().collect();
        sort(&mut all, max_tokens, |((tokens, variant), _)| BatchItem { tokens, variant: *variant });
        let sorted: Vec<BatchItem<'_>> =
            all.iter().map(|((tokens, variant), _)| BatchItem { tokens, variant: *variant }).collect();
        let mut start = 0;
        for end in batch_ends(&sorted, max_tokens) {
            if sink.is_cancelled() {
                return Ok(());
            }
            for side in [Side::Base, Side::Tuned] {
                let batch: Vec<Scored<'_>> = all[start..end]
                    .iter()
                    .copied()
                    .filter(|((_, variant), _)| self.variants.all[*variant].side == side)
                    .collect();
                if !batch.is_empty() {
                    self.score_batch(self.engine.model(side), &batch, sink)?;
                }
            }
            start = end;
            trim_memory();
        }
        Ok(())
    }

    fn score_batch(
        &mut self,
        model: &dyn Model,
        batch: &[Scored<'_>],
        sink: &mut dyn AnswerSink,
    ) -> Result<(), NnError> {
        let adapters: Vec<_> = self.variants.all.iter().map(|variant| variant.adapter()).collect();
        let sequences: Vec<Sequence<'_>> =
            batch.iter().map(|((tokens, variant), _)| Sequence { tokens, adapter: *variant }).collect();
        let output = model.forward_sequences(&sequences, &adapters)?;
        no_grad(|| {
            self.token_logprobs(model, &*output, batch, sink)?;
            self.next_tokens(&*output, batch, sink)?;
            self.embeddings(&*output, batch, sink)
        })
    }

    /// Answers requests for log-probabilities of given tokens.
    fn token_logprobs(
        &self,
        model: &dyn Model,
        output: &dyn SequenceOutput,
        batch: &[Scored<'_>],
        sink: &mut dyn AnswerSink,
    ) -> Result<(), NnError> {
        let first_scored = |request: usize| match self.requests[request].1.output {
            ScoreOutput::Completion(start) => Some(start),
            ScoreOutput::Rolling => Some(1),
            _ => None,
        };
        let mut positions = Vec::new();
        // For each sequence, its first scored token and the offset of its scores.
        let mut starts = Vec::new();
        for (row, ((tokens, _), requests)) in batch.iter().enumerate() {
            let from =
                requests.iter().filter_map(|request| first_scored(*request)).min().unwrap_or(tokens.len());
            starts.push((from, positions.len()));
            positions.extend((from..tokens.len()).map(|position| (row, position - 1)));
        }
        let mut logprobs: Vec<f32> = Vec::with_capacity(positions.len());
        for positions in positions.chunks(LOGIT_ROWS) {
            let targets: Vec<i64> =
                positions.iter().map(|&(row, position)| i64::from(batch[row].0.0[position + 1])).collect();
            let targets = Tensor::from_slice(&targets, &[positions.len(), 1])?;
            let replicated = Layout::replicated(model.plan().mesh());
            let targets = DTensor::distribute(model.dist(), &targets, replicated)?;
            let all = output.logits(positions)?.cast(DType::F32)?.log_softmax(1)?;
            logprobs.extend(all.gather(1, &targets)?.full_tensor()?.to_vec::<f32>()?);
        }
        for (((tokens, _), requests), (from, offset)) in batch.iter().zip(starts) {
            for &request in *requests {
                let Some(start) = first_scored(request) else { continue };
                let (question, request) = self.requests[request];
                let own = &logprobs[offset + start - from..offset + tokens.len() - from];
                sink.answered(question, request.log_likelihood(own));
            }
        }
        Ok(())
    }

    /// Answers requests for next-token distributions.
    fn next_tokens(
        &mut self,
        output: &dyn SequenceOutput,
        batch: &[Scored<'_>],
        sink: &mut dyn AnswerSink,
    ) -> Result<(), NnError> {
        let needs_row = |request: &usize| {
            matches!(
                self.requests[*request].1.output,
                ScoreOutput::NextTokens(_) | ScoreOutput::Divergence(_)
            )
        };
        let rows: Vec<usize> = (0..batch.len()).filter(|row| batch[*row].1.iter().any(needs_row)).collect();
        for rows in rows.chunks(LOGIT_ROWS) {
            let positions: Vec<(usize, usize)> =
                rows.iter().map(|&row| (row, batch[row].0.0.len() - 1)).collect();
            let logits = output.logits(&positions)?.cast(DType::F32)?.full_tensor()?;
            let width = logits.shape()[1];
            let logits = logits.to_vec::<f32>()?;
            for (&row, logits) in rows.iter().zip(logits.chunks_exact(width.max(1))) {
                let (key, requests) = batch[row];
                self.next_token(key, requests, logits, sink);
            }
        }
        Ok(())
    }

    fn next_token(
        &mut self,
        key: &SequenceKey,
        requests: &[usize],
        logits: &[f32],
        sink: &mut dyn AnswerSink,
    ) {
        self.pending.add(key, logits);
        for &request in requests {
            let (question, request) = self.requests[request];
            match &request.output {
                ScoreOutput::NextTokens(count) => {
                    sink.answered(question, request.next_tokens(logits, *count));
                }
                ScoreOutput::Divergence(from) => {
                    let keys = keys(self.variants, request);
                    if let Some([own, other]) = self.pending.take(&keys) {
                        sink.answered(question, request.divergence(&own, from, &other));
                    }
                }
                ScoreOutput::Completion(_) | ScoreOutput::Rolling | ScoreOutput::Embedding => {}
            }
        }
    }

    /// Answers requests for mean hidden states.
    fn embeddings(
        &self,
        output: &dyn SequenceOutput,
        batch: &[Scored<'_>],
        sink: &mut dyn AnswerSink,
    ) -> Result<(), NnError> {
        let is_embedding = |request: &usize| self.requests[*request].1.output == ScoreOutput::Embedding;
        let rows: Vec<usize> =
            (0..batch.len()).filter(|row| batch[*row].1.iter().any(is_embedding)).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let means = output.mean_hidden(&rows)?.full_tensor()?;
        let width = means.shape()[1];
        let means = means.to_vec::<f32>()?;
        for (&row, mean) in rows.iter().zip(means.chunks_exact(width.max(1))) {
            for (question, request) in
                batch[row].1.iter().filter(|request| is_embedding(request)).map(|index| self.requests[*index])
            {
                sink.answered(question, request.embedding(mean));
            }
        }
        Ok(())
    }
}

/// The sequences of a request: its own, and the one it is compared with.
fn keys(variants: &Variants, request: &ScoreRequest) -> [SequenceKey; 2] {
    let key = |view| (Arc::clone(&request.tokens), variants.index(view));
    match &request.output {
        ScoreOutput::Divergence(from) => [key(&request.view), key(from)],
        _ => [key(&request.view), key(&request.view)],
    }
}
