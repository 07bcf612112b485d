//! How likely a model finds texts.

use weightloom_layout::DType;
use weightloom_tensor::no_grad;

use crate::adapter::Adapter;
use crate::decoder::{Decoder, Input, Pass};
use crate::error::NnError;

/// Positions whose logits are in memory at once.
const CHUNK: usize = 512;

/// The logarithm of a token's probability, and of the likeliest ones'.
#[derive(Clone, Debug, PartialEq)]
pub struct Likeliest {
    /// The token's own.
    pub chosen: f64,
    /// The likeliest tokens, first the likeliest.
    pub others: Vec<(u32, f64)>,
}

impl Decoder {
    /// For each token of each row but the first, how likely it was, given what
    /// stands before it, and which `count` tokens were likeliest.
    pub fn score(
        &self,
        rows: &[&[u32]],
        count: usize,
        adapter: Option<(&Adapter, f64)>,
    ) -> Result<Vec<Vec<Likeliest>>, NnError> {
        no_grad(|| {
            if let Some(row) = rows.iter().position(|row| row.is_empty()) {
                return Err(NnError::EmptyPrompt { row });
            }
            let lengths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
            let input = Input::Tokens(self.tokens(rows)?);
            let hidden = self.hidden(
                input,
                Pass { lengths: Some(&lengths), changes: adapter.into(), ..Pass::default() },
            )?;
            let places: Vec<(usize, usize)> = lengths
                .iter()
                .enumerate()
                .flat_map(|(row, length)| (0..length - 1).map(move |at| (row, at)))
                .collect();
            let mut scores: Vec<Vec<Likeliest>> = rows.iter().map(|_| Vec::new()).collect();
            for places in places.chunks(CHUNK) {
                let logits = self.logits(&self.rows_at(&hidden, places)?, adapter)?;
                let logits = logits.cast(DType::F32)?.full_tensor()?.to_vec::<f32>()?;
                for (logits, &(row, at)) in logits.chunks_exact(self.config().vocabulary).zip(places) {
                    scores[row].push(log_probabilities(logits, rows[row][at + 1], count));
                }
            }
            Ok(scores)
        })
    }
}

/// The logarithms of the probabilities of a token and of the likeliest ones.
pub(crate) fn log_probabilities(logits: &[f32], chosen: u32, count: usize) -> Likeliest {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - most).exp())).sum();
    let total = f64::from(most) + sum.ln();
    let of =
        |token: u32| logits.get(token as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit) - total);
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    let count = count.min(tokens.len());
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if count > 0 && count < tokens.len() {
        tokens.select_nth_unstable_by(count - 1, by_logit);
    }
    tokens.truncate(count);
    tokens.sort_unstable_by(by_logit);
    Likeliest { chosen: of(chosen), others: tokens.into_iter().map(|token| (token, of(token))).collect() }
}
