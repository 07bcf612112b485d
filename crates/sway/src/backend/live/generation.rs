//! Generation in batches.

use std::cmp::Reverse;

use weightloom_hub::text::SpecialText;
use weightloom_nn::{Sampler, Sampling};

use super::scoring::broken;
use super::{LiveModel, LiveOptions, LiveText, SequenceLimits, simplest};
use crate::answer::Answer;
use crate::backend::AnswerSink;
use crate::backend::local::request::{GenerateRequest, StopAt};
use crate::error::{BackendError, QueryError};
use crate::view::View;

/// A request with the index of its question.
type Asked<'a> = (usize, &'a GenerateRequest);

/// Answers all generation requests.
pub(super) fn generate_all(
    model: &mut impl LiveModel,
    text: &LiveText,
    requests: &[(usize, GenerateRequest)],
    (limits, options): (&SequenceLimits, &LiveOptions),
    sink: &mut dyn AnswerSink,
) -> Result<(), BackendError> {
    let mut order: Vec<Asked<'_>> = requests.iter().map(|(index, request)| (*index, request)).collect();
    // Rows of a batch share a view, a length limit and stop tokens.
    let group =
        |(_, request): &Asked<'_>| (simplest(&request.view), Reverse(request.max_new_tokens), request.stop);
    order.sort_by_cached_key(|asked| (group(asked), asked.1.tokens.len(), asked.1.tokens.clone()));
    for group in order.chunk_by(|one, other| group(one) == group(other)) {
        let mut start = 0;
        while start < group.len() {
            if sink.is_cancelled() {
                return Ok(());
            }
            let fits = |&end: &usize| {
                let (rows, request) = (end + 1 - start, group[end].1);
                let width = request.tokens.len().saturating_add(request.max_new_tokens);
                rows <= options.max_batch_size && rows.saturating_mul(width) <= options.max_batch_positions
            };
            let end = (start + 1..group.len()).take_while(fits).last().map_or(start, |last| last) + 1;
            let batch = Batch::new(&group[start..end], text, limits);
            batch.run(model, &simplest(&group[start].1.view), sink)?;
            start = end;
        }
    }
    Ok(())
}

/// A batch of generations in progress.
struct Batch<'a> {
    requests: &'a [Asked<'a>],
    text: &'a LiveText,
    limits: &'a SequenceLimits,
    rows: Vec<Row>,
}

#[derive(Default)]
struct Row {
    added: Vec<u32>,
    /// Why it has no more tokens.
    end: Option<Result<(), QueryError>>,
}

impl<'a> Batch<'a> {
    fn new(requests: &'a [Asked<'a>], text: &'a LiveText, limits: &'a SequenceLimits) -> Self {
        let rows = requests.iter().map(|_| Row::default()).collect();
        Self { requests, text, limits, rows }
    }

    fn run(
        mut self,
        model: &mut impl LiveModel,
        view: &View,
        sink: &mut dyn AnswerSink,
    ) -> Result<(), BackendError> {
        let prompts: Vec<&[u32]> = self.requests.iter().map(|(_, request)| &*request.tokens).collect();
        let mut logits = model.start_generation(view, &prompts)?;
        loop {
            let tokens = self.step(&logits)?;
            if self.rows.iter().all(|row| row.end.is_some()) {
                break;
            }
            if sink.is_cancelled() {
                return Ok(());
            }
            logits = model.continue_generation(&tokens)?;
        }
        for (row, (question, _)) in self.rows.into_iter().zip(self.requests) {
            let text = || Answer::Text(self.text.tokenizer.decode(&row.added, SpecialText::Skip));
            let answer = row.end.clone().unwrap_or(Ok(())).map(|()| text());
            sink.answered(*question, answer);
        }
        Ok(())
    }

    /// Chooses the next token of each row. One that has ended still needs a token;
    /// any will do.
    fn step(&mut self, logits: &[f32]) -> Result<Vec<u32>, BackendError> {
        let (rows, vocabulary) = (self.rows.len(), self.limits.vocabulary);
        if logits.len() != rows * vocabulary {
            let found = logits.len();
            return Err(broken(format!("it returned {found} logits for {rows} rows of {vocabulary}")));
        }
        let mut tokens = Vec::with_capacity(rows);
        for (place, logits) in logits.chunks_exact(vocabulary).enumerate() {
            let token = match self.rows[place].end {
                Some(_) => 0,
                None => self.choose(place, logits)?,
            };
            tokens.push(token);
        }
        Ok(tokens)
    }

    fn choose(&mut self, place: usize, logits: &[f32]) -> Result<u32, BackendError> {
        let request = self.requests[place].1;
        let row = &mut self.rows[place];
        let penalty = self.text.repetition_penalty;
        let sampling = Sampling { repetition_penalty: penalty, ..request.sampling.clone() };
        let sampler = Sampler::new(sampling).map_err(|error| broken(error.to_string()))?;
        let before: Vec<u32> = match penalty == 1.0 {
            true => Vec::new(),
            false => request.tokens.iter().chain(&row.added).copied().collect(),
        };
        let mut adjusted = logits.to_vec();
        let token = sampler.sample(&mut adjusted, 0, row.added.len() as u64, &before);
        let logit = adjusted.get(token as usize).copied().unwrap_or(f32::NAN);
        if !logit.is_finite() {
            let (view, text) = (request.view.to_string(), request.text.clone());
            row.end = Some(Err(QueryError::NotFinite { view, found: logit.to_string(), text }));
            return Ok(0);
        }
        row.added.push(token);
        let stop = match request.stop {
            StopAt::EndOfText => &self.text.stop,
            StopAt::EndOfTurn => &self.text.turn_stop,
        };
        let length = request.tokens.len() + row.added.len();
        let is_full = self.limits.max_positions.is_some_and(|most| length >= most);
        if stop.contains(&token) || row.added.len() >= request.max_new_tokens || is_full {
            row.end = Some(Ok(()));
        }
        Ok(token)
    }
}
