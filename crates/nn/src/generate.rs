//! Writing on.

use weightloom_layout::DType;
use weightloom_tensor::no_grad;

use crate::cache::Cache;
use crate::changes::{Change, ChangedRows, Changes, grouped};
use crate::config::PositionConfig;
use crate::decoder::{Decoder, Input, Pass};
use crate::error::NnError;
use crate::forest::Text;
use crate::sample::{Sampler, Sampling};
use crate::score::{Likeliest, log_probabilities};

/// What is to be written on, and how.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Prompts, each at least one token long; they may differ in length.
    pub prompts: Vec<Vec<u32>>,
    /// The most tokens to add to each.
    pub max_new_tokens: usize,
    /// Tokens after which a row ends.
    pub stop: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// How many of the likeliest tokens are told besides each that was chosen;
    /// if not given, no probabilities are computed.
    pub likeliest: Option<usize>,
}

/// One token that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The row that it belongs to.
    pub row: usize,
    /// The token.
    pub id: u32,
    /// Its probability and that of others, if asked for.
    pub likeliest: Option<Likeliest>,
    /// Whether the row ends with it.
    pub finish: Option<Finish>,
}

/// Why a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token that ends texts came.
    Stop,
    /// It is as long as it may be.
    Length,
}

/// What was added to a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The tokens, with the one that ended it.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// Rows that are being written on, one token of each at a time.
pub struct Generation<'a> {
    decoder: &'a Decoder,
    /// The change of each row.
    changes: Vec<Option<Change<'a>>>,
    request: Request,
    sampler: Sampler,
    cache: Cache,
    /// The rows that are in the cache, in its order.
    live: Vec<usize>,
    /// Tokens that were added.
    added: Vec<Vec<u32>>,
    finished: Vec<Option<Finish>>,
}

impl<'a> Generation<'a> {
    /// Begins. Nothing is computed before the first step. Each row may have a
    /// change of its own; rows with the same are best side by side.
    pub fn new(
        decoder: &'a Decoder,
        changes: impl Into<Changes<'a>>,
        request: Request,
    ) -> Result<Self, NnError> {
        let changes = changes.into();
        changes.check(request.prompts.len())?;
        let changes = match changes {
            Changes::Same(change) => vec![change; request.prompts.len()],
            Changes::Groups(groups) => {
                groups.iter().flat_map(|group| std::iter::repeat_n(group.change, group.rows)).collect()
            }
        };
        if let Some(row) = request.prompts.iter().position(Vec::is_empty) {
            return Err(NnError::EmptyPrompt { row });
        }
        let longest = request.prompts.iter().map(Vec::len).max().unwrap_or(0);
        let config = decoder.config();
        if config.positions == PositionConfig::Learned && longest > config.max_positions {
            return Err(NnError::TooLong { asked: longest, most: config.max_positions });
        }
        let sampler = Sampler::new(request.sampling.clone())?;
        let rows = request.prompts.len();
        // A text without a limit grows with its cache.
        let room = longest + request.max_new_tokens.min(4096);
        let finish = (request.max_new_tokens == 0).then_some(Finish::Length);
        Ok(Self {
            decoder,
            changes,
            sampler,
            cache: Cache::new(rows, room),
            live: (0..rows).collect(),
            added: vec![Vec::new(); rows],
            finished: vec![finish; rows],
            request,
        })
    }

    /// Whether all rows have ended.
    pub fn is_done(&self) -> bool {
        self.finished.iter().all(Option::is_some)
    }

    /// Ends a row before its time.
    pub fn finish(&mut self, row: usize) {
        if let Some(finished) = self.finished.get_mut(row) {
            *finished = finished.or(Some(Finish::Stop));
        }
    }

    /// The next token of each row that has not ended.
    pub fn step(&mut self) -> Result<Vec<Token>, NnError> {
        if self.is_done() {
            return Ok(Vec::new());
        }
        self.drop_ended()?;
        let logits = no_grad(|| self.next_logits())?;
        let vocabulary = self.decoder.config().vocabulary;
        let mut tokens = Vec::new();
        for (&row, logits) in self.live.iter().zip(logits.chunks_exact(vocabulary)) {
            if self.finished[row].is_some() {
                // It is read on with the others, to no effect.
                self.added[row].push(0);
                continue;
            }
            let mut bent = logits.to_vec();
            let drawn = self.added[row].len() as u64;
            let before: Vec<u32> = if self.request.sampling.repetition_penalty == 1.0 {
                Vec::new()
            } else {
                self.request.prompts[row].iter().chain(&self.added[row]).copied().collect()
            };
            let id = self.sampler.choose(&mut bent, row as u64, drawn, &before);
            let chosen = bent.get(id as usize).copied().unwrap_or(f32::NAN);
            if !chosen.is_finite() {
                return Err(NnError::NotFinite { row, found: chosen.to_string() });
            }
            self.added[row].push(id);
            let finish = self.finish_of(row, id);
            self.finished[row] = finish;
            let likeliest = self.request.likeliest.map(|count| log_probabilities(logits, id, count));
            tokens.push(Token { row, id, likeliest, finish });
        }
        Ok(tokens)
    }

    fn finish_of(&self, row: usize, id: u32) -> Option<Finish> {
        let config = self.decoder.config();
        let length = self.request.prompts[row].len() + self.added[row].len();
        let full = config.positions == PositionConfig::Learned && length >= config.max_positions;
        if self.request.stop.contains(&id) {
            Some(Finish::Stop)
        } else if self.added[row].len() >= self.request.max_new_tokens || full {
            Some(Finish::Length)
        } else {
            None
        }
    }

    /// Takes rows that have ended out of the cache: when they are a quarter of
    /// it, since the others are copied, or when there is no position left to
    /// read them on.
    fn drop_ended(&mut self) -> Result<(), NnError> {
        let config = self.decoder.config();
        let ended = self.live.iter().filter(|row| self.finished[**row].is_some()).count();
        let most = config.max_positions;
        let full = config.positions == PositionConfig::Learned
            && self.cache.lengths().iter().any(|length| *length >= most);
        if ended == 0 || (ended * 4 < self.live.len() && !full) {
            return Ok(());
        }
        let kept: Vec<usize> =
            (0..self.live.len()).filter(|place| self.finished[self.live[*place]].is_none()).collect();
        no_grad(|| self.cache.keep(&kept))?;
        self.live = kept.into_iter().map(|place| self.live[place]).collect();
        Ok(())
    }

    /// Logits of the last token of each row that is in the cache.
    fn next_logits(&mut self) -> Result<Vec<f32>, NnError> {
        let groups: Vec<ChangedRows<'a>> = grouped(self.live.iter().map(|row| self.changes[*row]));
        let first = self.cache.lengths().iter().all(|length| *length == 0);
        let logits = if first {
            let changes: Vec<Option<Change<'a>>> = groups.iter().map(|group| group.change).collect();
            let numbers = groups.iter().enumerate();
            let numbers = numbers.flat_map(|(number, group)| std::iter::repeat_n(number, group.rows));
            let texts: Vec<Text<'_>> = self
                .live
                .iter()
                .zip(numbers)
                .map(|(row, change)| Text { tokens: &self.request.prompts[*row], change })
                .collect();
            let last: Vec<(usize, usize)> =
                texts.iter().enumerate().map(|(row, text)| (row, text.tokens.len() - 1)).collect();
            self.decoder.read_into(Some(&mut self.cache), &texts, &changes)?.logits(&last)?
        } else {
            let rows: Vec<&[u32]> = self
                .live
                .iter()
                .map(|&row| {
                    let added = &self.added[row];
                    &added[added.len().saturating_sub(1)..]
                })
                .collect();
            let input = Input::Tokens(self.decoder.tokens(&rows)?);
            let changes = Changes::Groups(&groups);
            let pass = Pass { cache: Some(&mut self.cache), changes, ..Pass::default() };
            let hidden = self.decoder.hidden(input, pass)?;
            let last: Vec<(usize, usize)> = (0..rows.len()).map(|row| (row, 0)).collect();
            self.decoder.logits(&self.decoder.rows_at(&hidden, &last)?, changes)?
        };
        Ok(logits.cast(DType::F32)?.full_tensor()?.to_vec::<f32>()?)
    }

    /// All steps.
    pub fn run(mut self) -> Result<Vec<Generated>, NnError> {
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.request.prompts.len()];
        while !self.is_done() {
            for token in self.step()? {
                rows[token.row].push(token.id);
            }
        }
        let finishes = self.finished.into_iter().map(|finish| finish.unwrap_or(Finish::Length));
        Ok(rows.into_iter().zip(finishes).map(|(tokens, finish)| Generated { tokens, finish }).collect())
    }
}
