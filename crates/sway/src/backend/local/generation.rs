//! Generation in batches over all variants.

use weightloom_hub::text::SpecialText;
use weightloom_nn::{Generation, NnError, Sampling, group_by_adapter};

use super::LocalOptions;
use super::engine::Engine;
use super::request::{GenerateRequest, StopAt};
use super::schedule::{Variants, trim_memory};
use crate::answer::Answer;
use crate::backend::AnswerSink;
use crate::error::QueryError;

/// Answers all generation requests, each with the index of its question.
pub(super) fn generate_all(
    engine: &Engine,
    variants: &Variants,
    options: &LocalOptions,
    requests: &[(usize, &GenerateRequest)],
    sink: &mut dyn AnswerSink,
) -> Result<(), NnError> {
    if sink.is_cancelled() {
        return Ok(());
    }
    let mut order: Vec<(usize, &GenerateRequest)> = requests.to_vec();
    // Rows of a batch share a model, a length limit and stop tokens; rows of a variant are
    // neighbours.
    order.sort_by_cached_key(|(_, request)| {
        let variant = variants.index(&request.view);
        let side = variants.all[variant].side;
        (
            side,
            std::cmp::Reverse(request.max_new_tokens),
            request.stop,
            variant,
            request.tokens.len(),
            request.tokens.clone(),
        )
    });
    let key = |(_, request): &(usize, &GenerateRequest)| {
        (variants.of(&request.view).side, request.max_new_tokens, request.stop)
    };
    for group in order.chunk_by(|a, b| key(a) == key(b)) {
        let mut start = 0;
        let mut positions = 0;
        for (index, (_, request)) in group.iter().enumerate() {
            let more = request.tokens.len().saturating_add(request.max_new_tokens);
            let is_full = index - start >= options.max_batch_size.max(1)
                || positions + more > options.max_batch_positions;
            if is_full && index > start {
                generate_batch(engine, variants, &group[start..index], sink)?;
                (start, positions) = (index, 0);
            }
            positions = positions.saturating_add(more);
        }
        generate_batch(engine, variants, &group[start..], sink)?;
    }
    Ok(())
}

fn generate_batch(
    engine: &Engine,
    variants: &Variants,
    requests: &[(usize, &GenerateRequest)],
    sink: &mut dyn AnswerSink,
) -> Result<(), NnError> {
    if sink.is_cancelled() {
        return Ok(());
    }
    let mut remaining: Vec<(usize, &GenerateRequest)> = requests.to_vec();
    while let Some((_, first)) = remaining.first() {
        let model = engine.model(variants.of(&first.view).side);
        let groups =
            group_by_adapter(remaining.iter().map(|(_, request)| variants.of(&request.view).adapter()));
        let request = weightloom_nn::GenerateRequest {
            prompts: remaining.iter().map(|(_, request)| request.tokens.to_vec()).collect(),
            max_new_tokens: first.max_new_tokens,
            stop_tokens: match first.stop {
                StopAt::EndOfText => engine.stop.clone(),
                StopAt::EndOfTurn => engine.turn_stop.clone(),
            },
            sampling: Sampling::default(),
            top_logprobs: None,
        };
        let sampling = remaining.iter().map(|(_, request)| Sampling {
            repetition_penalty: engine.repetition_penalty,
            ..request.sampling.clone()
        });
        let generation = Generation::new(model, &groups[..], request)?;
        match generation.with_row_sampling(sampling)?.run() {
            Ok(rows) => {
                for (row, (question, _)) in rows.iter().zip(&remaining) {
                    let text = engine.tokenizer.decode(&row.tokens, SpecialText::Skip);
                    sink.answered(*question, Ok(Answer::Text(text)));
                }
                trim_memory();
                return Ok(());
            }
            // Repeat the batch without the row that failed.
            Err(NnError::NotFinite { row, found }) if row < remaining.len() => {
                let (question, request) = remaining.remove(row);
                let (view, text) = (request.view.to_string(), request.text.clone());
                sink.answered(question, Err(QueryError::NotFinite { view, found, text }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
