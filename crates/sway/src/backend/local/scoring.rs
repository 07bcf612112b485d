//! Forward passes over sequences, in batches over all variants.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Layout};
use weightloom_nn::{Model, NnError, Sequence, SequenceOutput};
use weightloom_tensor::{Tensor, no_grad};

use super::batch::{BatchItem, batch_ends, sort};
use super::engine::Engine;
use super::logits::{divergence, log_softmax, top_k};
use super::request::{ScoreOutput, ScoreRequest};
use super::schedule::{Variants, trim_memory};
use super::variant::Side;
use crate::answer::{Answer, CompletionScore, Rolling};
use crate::backend::AnswerSink;
use crate::error::QueryError;
use crate::view::View;

/// Rows of logits held at once: enough to amortize output the output
/// projection.
const LOGIT_ROWS: usize = 128;

/// A sequence and the index of the variant that scores it.
type SequenceKey = (Arc<[u32]>, usize);

/// A sequence and the requests that need it.
type Scored<'a> = (&'a SequenceKey, &'a Vec<usize>);

/// Log-probabilities of the whole vocabulary, or a value that is not finite.
type LogProbs = Result<Vec<f64>, String>;

/// Scores requests in one pass over some variants.
pub(super) struct ScoringPass<'a> {
    engine: &'a Engine,
    variants: &'a Variants,
    /// Requests with the indices of their questions.
    requests: &'a [(usize, &'a ScoreRequest)],
    /// Requests by sequence.
    sequences: BTreeMap<SequenceKey, Vec<usize>>,
    pending: PendingRows,
}

/// Distributions held until every comparison with them is done.
#[derive(Default)]
struct PendingRows {
    /// Remaining comparisons by sequence.
    uses: HashMap<SequenceKey, usize>,
    rows: HashMap<SequenceKey, LogProbs>,
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
                    *pending.uses.entry(key.clone()).or_default() += 1;
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
                sink.answered(question, log_likelihood(request, own));
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
        let invalid = || {
            let found = logits.iter().find(|logit| !logit.is_finite());
            found.map_or_else(|| "no finite logit".to_owned(), f32::to_string)
        };
        if self.pending.uses.contains_key(key) {
            let row = log_softmax(logits).ok_or_else(invalid);
            self.pending.rows.insert(key.clone(), row);
        }
        for &request in requests {
            let (question, request) = self.requests[request];
            match &request.output {
                ScoreOutput::NextTokens(count) => {
                    let found = top_k(logits, *count).map(Answer::Distribution);
                    let error = || not_finite(request, &request.view, &invalid());
                    sink.answered(question, found.ok_or_else(error));
                }
                ScoreOutput::Divergence(from_view) => {
                    let [own, from] = keys(self.variants, request);
                    let rows = &self.pending.rows;
                    let (Some(a), Some(b)) = (rows.get(&own), rows.get(&from)) else { continue };
                    sink.answered(question, compare(request, a, from_view, b));
                    self.pending.release(&own);
                    self.pending.release(&from);
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
            let norm = mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
            for (question, request) in
                batch[row].1.iter().filter(|request| is_embedding(request)).map(|index| self.requests[*index])
            {
                let answer = if norm.is_finite() && norm > 0.0 {
                    Ok(Answer::Embedding(mean.iter().map(|&x| (f64::from(x) / norm) as f32).collect()))
                } else {
                    Err(not_finite(request, &request.view, &format!("a vector of norm {norm}")))
                };
                sink.answered(question, answer);
            }
        }
        Ok(())
    }
}

impl PendingRows {
    /// Drops a row after its last comparison.
    fn release(&mut self, key: &SequenceKey) {
        if let Some(uses) = self.uses.get_mut(key) {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(key);
                self.rows.remove(key);
            }
        }
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

/// The answer made of log-probabilities of tokens.
fn log_likelihood(request: &ScoreRequest, logprobs: &[f32]) -> Result<Answer, QueryError> {
    if let Some(found) = logprobs.iter().find(|logprob| !logprob.is_finite()) {
        return Err(not_finite(request, &request.view, &found.to_string()));
    }
    let total = logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
    Ok(match request.output {
        ScoreOutput::Completion(_) => Answer::Completion(CompletionScore { total, tokens: logprobs.len() }),
        _ => Answer::Rolling(Rolling { logprobs: logprobs.to_vec(), tokens: request.tokens.len(), total }),
    })
}

fn compare(
    request: &ScoreRequest,
    own: &LogProbs,
    from_view: &View,
    from: &LogProbs,
) -> Result<Answer, QueryError> {
    let own = own.as_ref().map_err(|found| not_finite(request, &request.view, found))?;
    let from = from.as_ref().map_err(|found| not_finite(request, from_view, found))?;
    if own.len() != from.len() {
        let message = format!("cannot compare vocabularies of {} and {} tokens", own.len(), from.len());
        return Err(QueryError::Failed { message });
    }
    let found = divergence(own, from).map(Answer::Divergence);
    found.ok_or_else(|| not_finite(request, &request.view, "an infinite divergence"))
}

fn not_finite(request: &ScoreRequest, view: &View, found: &str) -> QueryError {
    QueryError::NotFinite { view: view.to_string(), found: found.to_owned(), text: request.text.clone() }
}
