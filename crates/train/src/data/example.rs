//! Documents as the model sees them, for people to read.

use serde::Serialize;
use weightloom_hub::text::SpecialText;

use super::error::DataError;
use super::loader::Loader;
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
            let mut from = 0;
            let mask = &sample.mask[..sample.mask.len().min(stream.size + 1)];
            for part in mask.chunk_by(|one, next| one == next) {
                let tokens = &sample.tokens[from..from + part.len()];
                let text = stream.sampler.tokenizer.decode(tokens, SpecialText::Keep);
                passages.push(Passage { text, trained: part[0] });
                from += part.len();
            }
            examples.push(Example {
                origin,
                status: sample.status,
                tokens: sample.tokens.len(),
                trained_tokens: sample.targets(),
                full_length: sample.full_length,
                passages,
                complete,
            });
        }
        Ok(examples)
    }
}
