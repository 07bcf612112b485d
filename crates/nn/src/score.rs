//! Log-probabilities of given tokens.

use crate::batch_adapters::AdapterSpec;
use crate::decoder::Decoder;
use crate::error::NnError;
use crate::model::Check;
use crate::prefill::Prefill;
use crate::sequence::Sequence;

/// Tokens of rows that are scored together. Their keys and values are in memory
/// at once, and the logits of a chunk of them.
const GROUP_TOKENS: usize = 4096;

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The log-probability of the actual token.
    pub chosen: f64,
    /// The most likely tokens with their log-probabilities, in descending order.
    pub top: Vec<(u32, f64)>,
}

impl Decoder {
    /// Scores in chunks of a prefix tree; see
    /// [`Model::score_checked`](crate::Model::score_checked).
    pub(crate) fn score_tree(
        &self,
        rows: &[&[u32]],
        top: usize,
        adapter: Option<AdapterSpec<'_>>,
        check: Check<'_>,
    ) -> Result<Option<Vec<Vec<TokenLogprobs>>>, NnError> {
        if let Some(row) = rows.iter().position(|row| row.is_empty()) {
            return Err(NnError::EmptyPrompt { row });
        }
        let mut scores = Vec::with_capacity(rows.len());
        let mut rest = rows;
        while !rest.is_empty() {
            // As many rows as fit, and at least one.
            let ends = rest.iter().scan(0, |total, row| {
                *total += row.len();
                Some(*total)
            });
            let count = ends.take_while(|total| *total <= GROUP_TOKENS).count().max(1);
            let (group, others) = rest.split_at(count);
            let Some(scored) = self.score_group(group, top, adapter, check)? else { return Ok(None) };
            scores.extend(scored);
            rest = others;
        }
        Ok(Some(scores))
    }

    fn score_group(
        &self,
        rows: &[&[u32]],
        top: usize,
        adapter: Option<AdapterSpec<'_>>,
        check: Check<'_>,
    ) -> Result<Option<Vec<Vec<TokenLogprobs>>>, NnError> {
        let sequences: Vec<Sequence<'_>> =
            rows.iter().map(|tokens| Sequence { tokens, adapter: 0 }).collect();
        let mut prefill = Prefill::new(self, &sequences, vec![adapter], 0)?;
        // For each token of the tree, the rows that continue it, and where.
        let mut targets: Vec<(usize, usize, usize)> = Vec::new();
        for (row, tokens) in rows.iter().enumerate() {
            let before = prefill.tokens(row).take(tokens.len() - 1);
            targets.extend(before.enumerate().map(|(at, token)| (token, row, at + 1)));
        }
        targets.sort_unstable();
        let mut scores: Vec<Vec<TokenLogprobs>> = rows.iter().map(|_| Vec::new()).collect();
        let vocabulary = self.config().vocabulary;
        loop {
            if check().is_break() {
                return Ok(None);
            }
            let Some(chunk) = prefill.next_chunk()? else { return Ok(Some(scores)) };
            let count = targets.partition_point(|(token, ..)| *token < chunk.range.end);
            let later = targets.split_off(count);
            let inside = std::mem::replace(&mut targets, later);
            let mut tokens: Vec<usize> = inside.iter().map(|(token, ..)| *token).collect();
            tokens.dedup();
            if tokens.is_empty() {
                continue;
            }
            let logits = prefill.logits(&prefill.select(&chunk, &tokens)?, &tokens)?;
            for (token, row, at) in inside {
                let index = tokens.binary_search(&token).expect("scored tokens are computed") * vocabulary;
                let logits = &logits[index..index + vocabulary];
                let scored = token_logprobs(logits, rows[row][at], top);
                // One NaN among the logits, or +inf, makes all of them NaN.
                if scored.chosen.is_nan() {
                    return Err(NnError::NotFinite { row, found: scored.chosen.to_string() });
                }
                scores[row].push(scored);
            }
        }
    }
}

/// The log-probabilities of `chosen` and of the `top` most likely tokens.
pub(crate) fn token_logprobs(logits: &[f32], chosen: u32, top: usize) -> TokenLogprobs {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - largest).exp())).sum();
    let total = f64::from(largest) + sum.ln();
    let logprob =
        |token: u32| logits.get(token as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit) - total);
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    let top = top.min(tokens.len());
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if top > 0 && top < tokens.len() {
        tokens.select_nth_unstable_by(top - 1, by_logit);
    }
    tokens.truncate(top);
    tokens.sort_unstable_by(by_logit);
    TokenLogprobs {
        chosen: logprob(chosen),
        top: tokens.into_iter().map(|token| (token, logprob(token))).collect(),
    }
}
