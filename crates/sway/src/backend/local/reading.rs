//! Texts that are read: chunk by chunk, all views at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Layout};
use weightloom_nn::{Decoder, NnError, Reading, Text};
use weightloom_tensor::{Tensor, no_grad};

use super::chunks::{Item, ends, sort};
use super::engine::Engine;
use super::jobs::{Need, Read, scored};
use super::rows::{distribution, divergence, log_probabilities};
use super::variant::Side;
use super::work::{Tell, Variants, tidy};
use crate::answer::Answer;
use crate::error::QueryError;

/// Rows of logits that are in memory at once: enough to be worth reading the
/// last projection for.
const BLOCK: usize = 128;

/// A text, and the number of the variant that reads it.
type Key = (Arc<[u32]>, usize);

/// The same, and the jobs that want something of it.
type Wanted<'a> = (&'a Key, &'a Vec<usize>);

/// Logarithms of probabilities, or what is no number among them.
type Row = Result<Vec<f64>, String>;

/// Jobs that read, in one pass over some variants.
pub(super) struct Readings<'a> {
    engine: &'a Engine,
    variants: &'a Variants,
    /// Numbers of questions, and what is read for them.
    jobs: &'a [(usize, &'a Read)],
    /// Which jobs want something of a text under a variant.
    wanted: BTreeMap<Key, Vec<usize>>,
    rows: HeldRows,
}

/// Rows that are compared with others, until all of these have come.
#[derive(Default)]
struct HeldRows {
    /// How many comparisons still want a row.
    uses: HashMap<Key, usize>,
    /// Those that came.
    rows: HashMap<Key, Row>,
}

impl<'a> Readings<'a> {
    pub(super) fn new(engine: &'a Engine, variants: &'a Variants, jobs: &'a [(usize, &'a Read)]) -> Self {
        let mut wanted: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        let mut rows = HeldRows::default();
        for (job, (_, read)) in jobs.iter().enumerate() {
            let keys = keys(variants, read);
            for key in &keys {
                let jobs = wanted.entry(key.clone()).or_default();
                if jobs.last() != Some(&job) {
                    jobs.push(job);
                }
                if matches!(read.need, Need::Divergence(_)) {
                    *rows.uses.entry(key.clone()).or_default() += 1;
                }
            }
        }
        Self { engine, variants, jobs, wanted, rows }
    }

    /// Reads everything.
    pub(super) fn run(mut self, most: usize, tell: &mut Tell<'_>) -> Result<(), NnError> {
        let wanted = std::mem::take(&mut self.wanted);
        let mut all: Vec<Wanted<'_>> = wanted.iter().collect();
        sort(&mut all, most, |((tokens, variant), _)| Item { tokens, variant: *variant });
        let items: Vec<Item<'_>> =
            all.iter().map(|((tokens, variant), _)| Item { tokens, variant: *variant }).collect();
        let mut start = 0;
        for end in ends(&items, most) {
            for side in [Side::Base, Side::Tuned] {
                let here: Vec<Wanted<'_>> = all[start..end]
                    .iter()
                    .copied()
                    .filter(|((_, variant), _)| self.variants.all[*variant].side == side)
                    .collect();
                if !here.is_empty() {
                    self.chunk(self.engine.decoder(side), &here, tell)?;
                }
            }
            start = end;
            tidy();
        }
        Ok(())
    }

    fn chunk(&mut self, decoder: &Decoder, items: &[Wanted<'_>], tell: &mut Tell<'_>) -> Result<(), NnError> {
        let changes: Vec<_> = self.variants.all.iter().map(|variant| variant.change()).collect();
        let texts: Vec<Text<'_>> =
            items.iter().map(|((tokens, change), _)| Text { tokens, change: *change }).collect();
        let reading = decoder.read(&texts, &changes)?;
        no_grad(|| {
            self.scores(decoder, &reading, items, tell)?;
            self.next_tokens(&reading, items, tell)?;
            self.meanings(&reading, items, tell)
        })
    }

    /// Jobs that want how likely tokens are that are there.
    fn scores(
        &self,
        decoder: &Decoder,
        reading: &Reading<'_>,
        items: &[Wanted<'_>],
        tell: &mut Tell<'_>,
    ) -> Result<(), NnError> {
        let first = |job: usize| match self.jobs[job].1.need {
            Need::Completion(start) => Some(start),
            Need::Text => Some(1),
            _ => None,
        };
        let mut places = Vec::new();
        // For each text, its first token that is scored and where its scores begin.
        let mut starts = Vec::new();
        for (text, ((tokens, _), jobs)) in items.iter().enumerate() {
            let from = jobs.iter().filter_map(|job| first(*job)).min().unwrap_or(tokens.len());
            starts.push((from, places.len()));
            places.extend((from..tokens.len()).map(|place| (text, place - 1)));
        }
        let mut logprobs: Vec<f32> = Vec::with_capacity(places.len());
        for places in places.chunks(BLOCK) {
            let chosen: Vec<i64> =
                places.iter().map(|&(text, place)| i64::from(items[text].0.0[place + 1])).collect();
            let chosen = Tensor::from_slice(&chosen, &[places.len(), 1])?;
            let replicated = Layout::replicated(decoder.plan().mesh());
            let chosen = DTensor::distribute(decoder.dist(), &chosen, replicated)?;
            let all = reading.logits(places)?.cast(DType::F32)?.log_softmax(1)?;
            logprobs.extend(all.gather(1, &chosen)?.full_tensor()?.to_vec::<f32>()?);
        }
        for (((tokens, _), jobs), (from, at)) in items.iter().zip(starts) {
            for &job in *jobs {
                let Some(start) = first(job) else { continue };
                let (question, read) = self.jobs[job];
                let own = &logprobs[at + start - from..at + tokens.len() - from];
                let answer = scored(&read.need, tokens.len(), own);
                tell(question, answer.map_err(|odd| not_finite(read, &odd.to_string())));
            }
        }
        Ok(())
    }

    /// Jobs that want what comes next.
    fn next_tokens(
        &mut self,
        reading: &Reading<'_>,
        items: &[Wanted<'_>],
        tell: &mut Tell<'_>,
    ) -> Result<(), NnError> {
        let wants_row = |job: &usize| matches!(self.jobs[*job].1.need, Need::Next(_) | Need::Divergence(_));
        let wanted: Vec<usize> =
            (0..items.len()).filter(|text| items[*text].1.iter().any(wants_row)).collect();
        for wanted in wanted.chunks(BLOCK) {
            let places: Vec<(usize, usize)> =
                wanted.iter().map(|&text| (text, items[text].0.0.len() - 1)).collect();
            let logits = reading.logits(&places)?.cast(DType::F32)?.full_tensor()?;
            let width = logits.shape()[1];
            let logits = logits.to_vec::<f32>()?;
            for (&text, logits) in wanted.iter().zip(logits.chunks_exact(width.max(1))) {
                let (key, jobs) = items[text];
                self.row(key, jobs, logits, tell);
            }
        }
        Ok(())
    }

    fn row(&mut self, key: &Key, jobs: &[usize], logits: &[f32], tell: &mut Tell<'_>) {
        let odd = || {
            let odd = logits.iter().find(|logit| !logit.is_finite());
            odd.map_or_else(|| "no number".to_owned(), f32::to_string)
        };
        if self.rows.uses.contains_key(key) {
            let row = log_probabilities(logits).ok_or_else(odd);
            self.rows.rows.insert(key.clone(), row);
        }
        for &job in jobs {
            let (question, read) = self.jobs[job];
            match &read.need {
                Need::Next(top) => {
                    let made = distribution(logits, *top).map(Answer::Distribution);
                    tell(question, made.ok_or_else(|| not_finite(read, &odd())));
                }
                Need::Divergence(_) => {
                    let [asked, from] = keys(self.variants, read);
                    let (Some(a), Some(b)) = (self.rows.rows.get(&asked), self.rows.rows.get(&from)) else {
                        continue;
                    };
                    tell(question, compared(read, a, b));
                    self.rows.release(&asked);
                    self.rows.release(&from);
                }
                Need::Completion(_) | Need::Text | Need::Embedding => {}
            }
        }
    }

    /// Jobs that want means of hidden states.
    fn meanings(
        &self,
        reading: &Reading<'_>,
        items: &[Wanted<'_>],
        tell: &mut Tell<'_>,
    ) -> Result<(), NnError> {
        let is_meant = |job: &usize| self.jobs[*job].1.need == Need::Embedding;
        let wanted: Vec<usize> =
            (0..items.len()).filter(|text| items[*text].1.iter().any(is_meant)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let means = reading.means(&wanted)?.full_tensor()?;
        let width = means.shape()[1];
        let means = means.to_vec::<f32>()?;
        for (&text, mean) in wanted.iter().zip(means.chunks_exact(width.max(1))) {
            let squares: f64 = mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let length = squares.sqrt();
            for (question, read) in
                items[text].1.iter().filter(|job| is_meant(job)).map(|job| self.jobs[*job])
            {
                tell(
                    question,
                    if length.is_finite() && length > 0.0 {
                        Ok(Answer::Embedding(mean.iter().map(|&x| (f64::from(x) / length) as f32).collect()))
                    } else {
                        Err(not_finite(read, &format!("a vector of the length {length}")))
                    },
                );
            }
        }
        Ok(())
    }
}

impl HeldRows {
    /// One comparison less wants a row.
    fn release(&mut self, key: &Key) {
        if let Some(uses) = self.uses.get_mut(key) {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(key);
                self.rows.remove(key);
            }
        }
    }
}

/// The rows that a job wants: its own, and the one that it is compared with.
fn keys(variants: &Variants, read: &Read) -> [Key; 2] {
    let key = |view| (Arc::clone(&read.tokens), variants.number(view));
    match &read.need {
        Need::Divergence(from) => [key(&read.view), key(from)],
        _ => [key(&read.view), key(&read.view)],
    }
}

fn compared(read: &Read, asked: &Row, from: &Row) -> Result<Answer, QueryError> {
    let (asked, from) = match (asked, from) {
        (Ok(asked), Ok(from)) => (asked, from),
        (Err(odd), _) => return Err(not_finite(read, odd)),
        (_, Err(odd)) => {
            let Need::Divergence(view) = &read.need else { return Err(not_finite(read, odd)) };
            let other = Read { view: view.clone(), ..read.clone() };
            return Err(not_finite(&other, odd));
        }
    };
    if asked.len() != from.len() {
        let message = format!("{} and {} tokens cannot be compared", asked.len(), from.len());
        return Err(QueryError::Failed { message });
    }
    let found = divergence(asked, from).map(Answer::Divergence);
    found.ok_or_else(|| not_finite(read, "a divergence without bound"))
}

fn not_finite(read: &Read, found: &str) -> QueryError {
    QueryError::NotFinite { view: read.view.to_string(), found: found.to_owned(), text: read.text.clone() }
}
