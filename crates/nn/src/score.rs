//! Log-probabilities of given tokens.

use weightloom_layout::DType;
use weightloom_tensor::no_grad;

use crate::batch_adapters::AdapterSpec;
use crate::decoder::{Decoder, ForwardArgs, Input};
use crate::error::NnError;

/// Positions whose logits are in memory at once.
const CHUNK: usize = 512;

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The log-probability of the actual token.
    pub chosen: f64,
    /// The most likely tokens with their log-probabilities, in descending order.
    pub top: Vec<(u32, f64)>,
}

impl Decoder {
    /// Scores every token but the first of each row given the tokens before it,
    /// with the `top` most likely tokens at its position.
    pub fn score(
        &self,
        rows: &[&[u32]],
        top: usize,
        adapter: Option<AdapterSpec<'_>>,
    ) -> Result<Vec<Vec<TokenLogprobs>>, NnError> {
        no_grad(|| {
            if let Some(row) = rows.iter().position(|row| row.is_empty()) {
                return Err(NnError::EmptyPrompt { row });
            }
            let lengths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
            let input = Input::Tokens(self.tokens(rows)?);
            let hidden = self.forward(
                input,
                ForwardArgs { lengths: Some(&lengths), adapters: adapter.into(), ..ForwardArgs::default() },
            )?;
            let positions: Vec<(usize, usize)> = lengths
                .iter()
                .enumerate()
                .flat_map(|(row, length)| (0..length - 1).map(move |at| (row, at)))
                .collect();
            let mut scores: Vec<Vec<TokenLogprobs>> = rows.iter().map(|_| Vec::new()).collect();
            for positions in positions.chunks(CHUNK) {
                let logits = self.logits(&self.select_positions(&hidden, positions)?, adapter)?;
                let logits = logits.cast(DType::F32)?.full_tensor()?.to_vec::<f32>()?;
                for (logits, &(row, at)) in logits.chunks_exact(self.config().vocabulary).zip(positions) {
                    scores[row].push(token_logprobs(logits, rows[row][at + 1], top));
                }
            }
            Ok(scores)
        })
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
