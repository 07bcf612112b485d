//! Forward passes over sequences, one view after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ForwardOutput, ForwardRequest, LiveModel, LiveOptions, SequenceLimits, simplest};
use crate::backend::AnswerSink;
use crate::backend::local::pending_rows::PendingRows;
use crate::backend::local::request::{ScoreOutput, ScoreRequest};
use crate::error::BackendError;
use crate::view::View;

/// A sequence in a view.
type SequenceKey = (Arc<[u32]>, View);

/// Requests with the indices of their questions.
type Requests = [(usize, ScoreRequest)];

/// Scores all requests.
pub(super) fn score_all(
    model: &mut impl LiveModel,
    requests: &Requests,
    (limits, options): (&SequenceLimits, &LiveOptions),
    sink: &mut dyn AnswerSink,
) -> Result<(), BackendError> {
    let mut texts: BTreeMap<&Arc<[u32]>, Vec<usize>> = BTreeMap::new();
    for (place, (_, request)) in requests.iter().enumerate() {
        texts.entry(&request.tokens).or_default().push(place);
    }
    // A distribution of each text waits until those of other views are there.
    let row_bytes = limits.vocabulary.max(1) * size_of::<f64>();
    let most_texts = (options.max_row_bytes / row_bytes).max(1);
    let texts: Vec<Vec<usize>> = texts.into_values().collect();
    for texts in texts.chunks(most_texts) {
        let places: Vec<usize> = texts.iter().flatten().copied().collect();
        ScoringPass::new(requests, &places).run(model, options.max_batch_tokens, sink)?;
    }
    Ok(())
}

/// Scores some requests.
struct ScoringPass<'a> {
    requests: &'a Requests,
    /// By view, the requests that need each sequence.
    views: BTreeMap<View, BTreeMap<Arc<[u32]>, Vec<usize>>>,
    pending: PendingRows<SequenceKey>,
}

impl<'a> ScoringPass<'a> {
    fn new(requests: &'a Requests, places: &[usize]) -> Self {
        let mut views: BTreeMap<View, BTreeMap<Arc<[u32]>, Vec<usize>>> = BTreeMap::new();
        let mut pending = PendingRows::default();
        for &place in places {
            let request = &requests[place].1;
            for key in keys(request) {
                if matches!(request.output, ScoreOutput::Divergence(_)) {
                    pending.expect(&key);
                }
                let (tokens, view) = key;
                let users = views.entry(view).or_default().entry(tokens).or_default();
                if users.last() != Some(&place) {
                    users.push(place);
                }
            }
        }
        Self { requests, views, pending }
    }

    fn run(
        mut self,
        model: &mut impl LiveModel,
        max_tokens: usize,
        sink: &mut dyn AnswerSink,
    ) -> Result<(), BackendError> {
        for (view, sequences) in std::mem::take(&mut self.views) {
            let mut sequences: Vec<(Arc<[u32]>, Vec<usize>)> = sequences.into_iter().collect();
            // Sequences of a batch are padded to the longest.
            sequences.sort_by_key(|(tokens, _)| tokens.len());
            let mut start = 0;
            while start < sequences.len() {
                if sink.is_cancelled() {
                    return Ok(());
                }
                let fits = |&end: &usize| (end + 1 - start) * sequences[end].0.len() <= max_tokens;
                let end = (start + 1..sequences.len()).take_while(fits).last().map_or(start, |last| last) + 1;
                self.score_batch(model, &view, &sequences[start..end], sink)?;
                start = end;
            }
        }
        Ok(())
    }

    fn score_batch(
        &mut self,
        model: &mut impl LiveModel,
        view: &View,
        batch: &[(Arc<[u32]>, Vec<usize>)],
        sink: &mut dyn AnswerSink,
    ) -> Result<(), BackendError> {
        let asked: Vec<ForwardRequest<'_>> =
            batch.iter().map(|(tokens, places)| self.asked(tokens, places)).collect();
        let outputs = model.forward(view, &asked)?;
        if outputs.len() != batch.len() {
            let (found, expected) = (outputs.len(), batch.len());
            return Err(broken(format!("it returned {found} outputs for {expected} sequences")));
        }
        for (((tokens, places), asked), output) in batch.iter().zip(&asked).zip(&outputs) {
            if output.logprobs.len() != tokens.len() - asked.scored_from {
                let found = output.logprobs.len();
                let expected = tokens.len() - asked.scored_from;
                return Err(broken(format!("it returned {found} log-probabilities of {expected} tokens")));
            }
            let key = (Arc::clone(tokens), view.clone());
            self.pending.add(&key, &output.next_logits);
            for &place in places {
                self.answer(place, asked, output, sink);
            }
        }
        Ok(())
    }

    /// What requests ask of a sequence.
    fn asked<'t>(&self, tokens: &'t [u32], places: &[usize]) -> ForwardRequest<'t> {
        let mut asked = ForwardRequest { tokens, scored_from: tokens.len(), next: false, hidden: false };
        for &place in places {
            match self.requests[place].1.output {
                ScoreOutput::NextTokens(_) | ScoreOutput::Divergence(_) => asked.next = true,
                ScoreOutput::Completion(start) => asked.scored_from = asked.scored_from.min(start),
                ScoreOutput::Rolling => asked.scored_from = 1,
                ScoreOutput::Embedding => asked.hidden = true,
            }
        }
        asked
    }

    fn answer(
        &mut self,
        place: usize,
        asked: &ForwardRequest<'_>,
        output: &ForwardOutput,
        sink: &mut dyn AnswerSink,
    ) {
        let (question, request) = &self.requests[place];
        let answer = match &request.output {
            ScoreOutput::NextTokens(count) => request.next_tokens(&output.next_logits, *count),
            ScoreOutput::Divergence(from) => match self.pending.take(&keys(request)) {
                Some([own, other]) => request.divergence(&own, from, &other),
                None => return,
            },
            ScoreOutput::Completion(start) => {
                request.log_likelihood(&output.logprobs[start - asked.scored_from..])
            }
            ScoreOutput::Rolling => request.log_likelihood(&output.logprobs[1 - asked.scored_from..]),
            ScoreOutput::Embedding => request.embedding(&output.mean_hidden),
        };
        sink.answered(*question, answer);
    }
}

/// The sequences of a request: its own, and the one it is compared with.
fn keys(request: &ScoreRequest) -> [SequenceKey; 2] {
    let key = |view| (Arc::clone(&request.tokens), simplest(view));
    match &request.output {
        ScoreOutput::Divergence(from) => [key(&request.view), key(from)],
        _ => [key(&request.view), key(&request.view)],
    }
}

/// The error of a model that returns something else than asked for.
pub(super) fn broken(message: String) -> BackendError {
    BackendError { backend: super::KIND.to_owned(), message, hint: None }
}
