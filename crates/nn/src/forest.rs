//! Many texts under many changes, read at once.
//!
//! Texts that begin alike share what they have in common; nothing is computed
//! twice and nothing is filled up. A text's numbers are the same bits whatever
//! it is read with.

use std::sync::Arc;

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Tensor, no_grad};

use crate::branches::Branches;
use crate::cache::Cache;
use crate::changes::{Change, ChangedRows, Changes, grouped};
use crate::decoder::{Decoder, Input, Kept};
use crate::error::NnError;

/// A text, and what it is read with.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Its tokens, at least one.
    pub tokens: &'a [u32],
    /// The number of the change.
    pub change: usize,
}

/// Texts that were read.
pub struct Reading<'a> {
    decoder: &'a Decoder,
    changes: Vec<Option<Change<'a>>>,
    branches: Branches,
    /// By token, not by text.
    of_tokens: Vec<usize>,
    /// `[tokens, 1, hidden]`.
    hidden: DTensor,
}

impl Decoder {
    /// Reads texts, each with one of some changes, as one row of tokens without
    /// gaps. How many tokens that are, and with it how much memory is used, the
    /// caller decides.
    pub fn read<'a>(
        &'a self,
        texts: &[Text<'_>],
        changes: &[Option<Change<'a>>],
    ) -> Result<Reading<'a>, NnError> {
        self.read_into(None, texts, changes)
    }

    /// The same, and keeps the keys and values of each text in a row of an empty
    /// cache.
    pub(crate) fn read_into<'a>(
        &'a self,
        mut cache: Option<&mut Cache>,
        texts: &[Text<'_>],
        changes: &[Option<Change<'a>>],
    ) -> Result<Reading<'a>, NnError> {
        if texts.is_empty() {
            return Err(NnError::EmptyPrompt { row: 0 });
        }
        for (text, &Text { tokens, change }) in texts.iter().enumerate() {
            if tokens.is_empty() {
                return Err(NnError::EmptyPrompt { row: text });
            }
            if change >= changes.len() {
                return Err(NnError::UnknownChange { text, change, count: changes.len() });
            }
        }
        let lengths = texts.iter().map(|text| text.tokens.len());
        self.check_length(&[lengths.clone().max().unwrap_or(0)], None, 0)?;
        let given: Vec<(&[u32], usize)> = texts.iter().map(|text| (text.tokens, text.change)).collect();
        let branches = Branches::new(&given);
        let of_tokens: Vec<usize> = branches.changes().collect();
        let groups = grouped(of_tokens.iter().map(|&change| changes[change]));
        let rows: Vec<&[u32]> = branches.tokens().chunks(1).collect();
        let hidden = no_grad(|| {
            let tokens = self.tokens(&rows)?;
            let standing = self.standing(&tokens, branches.positions())?.with_branches(branches.clone());
            let run = self.run(Changes::Groups(&groups));
            let (input, standing) = (Input::Tokens(tokens), Arc::new(standing));
            self.through_layers(&run, input, standing, cache.as_deref_mut(), Kept::All)
        })?;
        if let Some(cache) = cache {
            cache.advance(lengths);
        }
        Ok(Reading { decoder: self, changes: changes.to_vec(), branches, of_tokens, hidden })
    }
}

impl Reading<'_> {
    /// How many tokens were read: those that texts share count once.
    pub fn tokens(&self) -> usize {
        self.of_tokens.len()
    }

    /// Logits `[places, vocabulary]` behind some tokens: `(text, token)` each.
    pub fn logits(&self, places: &[(usize, usize)]) -> Result<DTensor, NnError> {
        no_grad(|| {
            let rows = self.rows(places)?;
            let hidden = self.decoder.rows_at(&self.hidden, &rows)?;
            let groups: Vec<ChangedRows<'_>> =
                grouped(rows.iter().map(|(row, _)| self.changes[self.of_tokens[*row]]));
            self.decoder.logits(&hidden, &groups[..])
        })
    }

    /// The means of the hidden states of all tokens of some texts, `[texts,
    /// hidden]`, in single precision.
    pub fn means(&self, texts: &[usize]) -> Result<DTensor, NnError> {
        no_grad(|| {
            let mut means = Vec::with_capacity(texts.len());
            for &text in texts {
                let length = self.branches.length(text).unwrap_or(0);
                let places: Vec<(usize, usize)> = (0..length.max(1)).map(|place| (text, place)).collect();
                let hidden = self.decoder.rows_at(&self.hidden, &self.rows(&places)?)?;
                let mean = hidden.cast(DType::F32)?.mean(&[0])?;
                means.push(mean.reshape(&Shape::new(&[1, hidden.shape()[1]])?)?);
            }
            match &means[..] {
                [] => {
                    let none = Tensor::zeros(DType::F32, &[0, self.hidden.shape()[2]], self.hidden.device())?;
                    let layout = Layout::replicated(self.decoder.plan().mesh());
                    Ok(DTensor::distribute(self.decoder.dist(), &none, layout)?)
                }
                means => Ok(DTensor::cat(&means.iter().collect::<Vec<_>>(), 0)?),
            }
        })
    }

    /// Where tokens of texts are among the hidden states.
    fn rows(&self, places: &[(usize, usize)]) -> Result<Vec<(usize, usize)>, NnError> {
        let row = |&(text, place): &(usize, usize)| {
            let length = self.branches.length(text).unwrap_or(0);
            let mut before = 0;
            let pieces = if place < length { self.branches.pieces(text) } else { Vec::new() };
            let found = pieces.into_iter().find_map(|piece| {
                let at = place - before;
                before += piece.len();
                (at < piece.len()).then_some((piece.start + at, 0))
            });
            found.ok_or(NnError::UnknownPlace { text, length, place })
        };
        places.iter().map(row).collect()
    }
}
