//! Documents as the model sees them, for people to read.

use serde::Serialize;
use weightloom_hub::text::{SpecialText, Tokenizer};

use super::error::DataError;
use super::loader::Loader;
use super::row::PairKind;
use super::status::DocumentStatus;

/// Characters of a dropped record.
const RECORD: usize = 400;

/// A document as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    /// File and line.
    pub origin: String,
    /// How it is used.
    pub status: DocumentStatus,
    /// Number of tokens; 0 if dropped.
    pub tokens: usize,
    /// Number of tokens that contribute to the loss.
    pub trained_tokens: usize,
    /// Number of tokens before truncation.
    pub full_length: usize,
    /// Its text, in passages that contribute to the loss or do not: of the first
    /// row, or the start of the record if it is dropped.
    pub passages: Vec<Passage>,
    /// Whether the passages are all of it.
    pub complete: bool,
    /// The second sequence, in a row of preferences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<SecondSequence>,
}

/// The second sequence of a row of preferences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct SecondSequence {
    /// What the two sequences are.
    pub kind: PairKind,
    pub passages: Vec<Passage>,
}

/// Consecutive tokens that all contribute to the loss, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Passage {
    pub text: String,
    /// Whether it contributes to the loss.
    pub trained: bool,
}

impl Loader {
    /// The first `count` documents in the order of the first epoch.
    pub fn examples(&mut self, count: usize) -> Result<Vec<Example>, DataError> {
        let stream = self.files()?;
        let mut examples = Vec::new();
        for place in 0..count.min(stream.documents.len()) {
            let document = stream.order.at(0, place as u64) as usize;
            let origin = stream.documents.origin(document).to_string();
            let sample = stream.sample(document)?.clone();
            let mut passages = Vec::new();
            let mut complete = sample.tokens.len() <= stream.size + 1;
            if sample.tokens.is_empty() {
                let record = stream.documents.text(document)?;
                let start: String = record.trim_end().chars().take(RECORD).collect();
                complete = start.len() == record.trim_end().len();
                passages.push(Passage { text: start, trained: false });
            }
            let tokenizer = &stream.sampler.tokenizer;
            let mask = &sample.mask[..sample.mask.len().min(stream.size + 1)];
            passages.extend(split(tokenizer, &sample.tokens, mask));
            let second = sample.second.as_ref().map(|second| SecondSequence {
                kind: second.kind,
                passages: split(tokenizer, &second.tokens, &second.mask),
            });
            examples.push(Example {
                origin,
                status: sample.status,
                tokens: sample.length(),
                trained_tokens: sample.targets(),
                full_length: sample.full_length,
                passages,
                complete,
                second,
            });
        }
        Ok(examples)
    }
}

/// The passages of tokens.
fn split(tokenizer: &Tokenizer, tokens: &[u32], mask: &[bool]) -> Vec<Passage> {
    let mut from = 0;
    let parts = mask.chunk_by(|one, next| one == next);
    let passage = |part: &[bool]| {
        let text = tokenizer.decode(&tokens[from..from + part.len()], SpecialText::Keep);
        from += part.len();
        Passage { text, trained: part[0] }
    };
    parts.map(passage).collect()
}
