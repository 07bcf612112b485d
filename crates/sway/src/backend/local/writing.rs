//! Texts that are written on, many views at once.

use weightloom_hub::text::SpecialText;
use weightloom_nn::{Generation, NnError, Request, Sampling, grouped};

use super::LocalOptions;
use super::engine::Engine;
use super::jobs::Write;
use super::work::{Tell, Variants, tidy};
use crate::answer::Answer;
use crate::error::QueryError;

/// Writes all of them on, in batches.
pub(super) fn write_all(
    engine: &Engine,
    variants: &Variants,
    options: &LocalOptions,
    jobs: &[(usize, &Write)],
    tell: &mut Tell<'_>,
) -> Result<(), NnError> {
    let mut order: Vec<(usize, &Write)> = jobs.to_vec();
    // Rows of one batch end together and stand side by side by variant; rows of
    // one decoder are a batch.
    order.sort_by_cached_key(|(_, job)| {
        let variant = variants.number(&job.view);
        let side = variants.all[variant].side;
        (side, std::cmp::Reverse(job.max_new_tokens), variant, job.tokens.len(), job.tokens.clone())
    });
    let key =
        |(_, job): &(usize, &Write)| (variants.all[variants.number(&job.view)].side, job.max_new_tokens);
    for alike in order.chunk_by(|a, b| key(a) == key(b)) {
        let mut start = 0;
        let mut positions = 0;
        for (place, (_, job)) in alike.iter().enumerate() {
            let more = job.tokens.len().saturating_add(job.max_new_tokens);
            let full = place - start >= options.rows_per_batch.max(1)
                || positions + more > options.positions_per_batch;
            if full && place > start {
                batch(engine, variants, &alike[start..place], tell)?;
                (start, positions) = (place, 0);
            }
            positions = positions.saturating_add(more);
        }
        batch(engine, variants, &alike[start..], tell)?;
    }
    Ok(())
}

fn batch(
    engine: &Engine,
    variants: &Variants,
    jobs: &[(usize, &Write)],
    tell: &mut Tell<'_>,
) -> Result<(), NnError> {
    let mut left: Vec<(usize, &Write)> = jobs.to_vec();
    while let Some((_, first)) = left.first() {
        let decoder = engine.decoder(variants.all[variants.number(&first.view)].side);
        let groups = grouped(left.iter().map(|(_, job)| variants.all[variants.number(&job.view)].change()));
        let request = Request {
            prompts: left.iter().map(|(_, job)| job.tokens.to_vec()).collect(),
            max_new_tokens: first.max_new_tokens,
            stop: engine.stop.clone(),
            sampling: Sampling { repetition_penalty: engine.repetition_penalty, ..Sampling::default() },
            likeliest: None,
        };
        match Generation::new(decoder, &groups[..], request)?.run() {
            Ok(rows) => {
                for (row, (question, _)) in rows.iter().zip(&left) {
                    let text = engine.tokenizer.decode(&row.tokens, SpecialText::Skip);
                    tell(*question, Ok(Answer::Text(text)));
                }
                tidy();
                return Ok(());
            }
            // The others are written without it.
            Err(NnError::NotFinite { row, found }) if row < left.len() => {
                let (question, job) = left.remove(row);
                let (view, text) = (job.view.to_string(), job.text.clone());
                tell(question, Err(QueryError::NotFinite { view, found, text }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
