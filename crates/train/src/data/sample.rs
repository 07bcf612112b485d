//! Tokenized documents with a loss mask.
//!
//! - Text: all tokens contribute to the loss. The tokenizer's first EOS token, if
//!   it has one, ends the text, and the tokenizer adds what it puts at the start.
//! - Prompt and completion are tokenized as one text, as the model will see
//!   them. Tokens with a byte of the completion contribute, and the EOS token.
//! - A conversation is tokenized as its template renders it, with nothing added.
//!   Assistant messages contribute, with the token that ends the turn, but not
//!   white space that the template appends to it.
//!
//! Special tokens in the text of a document are recognized.
//!
//! The first token of a document never contributes, because nothing precedes it.
//! So the mask does not depend on how documents are split into rows.

use std::ops::Range;
use std::sync::Arc;

use weightloom_hub::text::{ChatContext, ChatTemplate, ChatTemplates, Encoded, Message, Special, Tokenizer};

use super::chat::{self, AssistantSpan, LocateError, SpanEnd};
use super::error::DataError;
use super::record::{Content, Origin};
use crate::config::TrainOn;

/// How a document is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DocumentStatus {
    /// As a whole.
    Whole,
    /// Truncated to a row.
    Truncated,
    /// Not at all, because no token contributes to the loss.
    Skipped,
}

/// A tokenized document. Empty if skipped, else two tokens or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) tokens: Vec<u32>,
    /// Whether each token contributes to the loss.
    pub(super) mask: Vec<bool>,
    pub(super) status: DocumentStatus,
}

impl Sample {
    fn skipped() -> Self {
        Self { tokens: Vec::new(), mask: Vec::new(), status: DocumentStatus::Skipped }
    }

    pub(super) fn targets(&self) -> usize {
        self.mask.iter().filter(|&&masked| masked).count()
    }
}

/// Tokenizes documents.
pub(super) struct Sampler {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) templates: Templates,
    pub(super) train_on: TrainOn,
    /// Maximum tokens of a prompt or conversation.
    pub(super) max_tokens: usize,
    pub(super) vocabulary: usize,
}

/// The source of chat templates.
pub(super) enum Templates {
    /// From the model.
    Model(Arc<ChatTemplates>),
    /// From a file.
    File(Box<ChatTemplate>),
}

impl Templates {
    pub(super) fn pick(&self, context: &ChatContext) -> Option<&ChatTemplate> {
        match self {
            Self::Model(templates) => templates.pick(context),
            Self::File(template) => Some(template),
        }
    }
}

impl Sampler {
    pub(super) fn sample(&self, content: Content, origin: &Origin) -> Result<Sample, DataError> {
        let mut sample = match content {
            Content::Text(text) => self.text(&text, origin)?,
            Content::Prompt { prompt, completion } => self.prompt(prompt, &completion, origin)?,
            Content::Chat { messages, tools } => {
                let context = ChatContext { tools, ..ChatContext::default() };
                self.chat(&messages, &context, origin)?
            }
        };
        if let Some(&token) = sample.tokens.iter().find(|&&token| token as usize >= self.vocabulary) {
            let Origin { file, line } = origin.clone();
            return Err(DataError::Token { file, line, token, vocabulary: self.vocabulary });
        }
        if let Some(first) = sample.mask.first_mut() {
            *first = false;
        }
        if sample.targets() == 0 {
            return Ok(Sample::skipped());
        }
        Ok(sample)
    }

    fn text(&self, text: &str, origin: &Origin) -> Result<Sample, DataError> {
        let mut tokens = self.tokenizer.encode(text, Special::Add).map_err(|source| DataError::Encode {
            file: origin.file.clone(),
            line: origin.line,
            source,
        })?;
        let is_marker =
            |token: &u32| self.tokenizer.bos() == Some(*token) || self.tokenizer.eos().contains(token);
        if tokens.iter().all(is_marker) {
            return Ok(Sample::skipped());
        }
        if self.has_two_bos(&tokens) {
            tokens.remove(0);
        }
        if self.has_two_eos(&tokens) {
            tokens.pop();
        }
        if let Some(end) = self.missing_eos(&tokens) {
            tokens.push(end);
        }
        Ok(Sample { mask: vec![true; tokens.len()], tokens, status: DocumentStatus::Whole })
    }

    fn prompt(&self, prompt: String, completion: &str, origin: &Origin) -> Result<Sample, DataError> {
        let from = prompt.len();
        let whole = prompt + completion;
        let Encoded { ids: mut tokens, mut offsets } = self.encode(&whole, Special::Add, origin)?;
        if self.has_two_bos(&tokens) {
            tokens.remove(0);
            offsets.remove(0);
        }
        if self.has_two_eos(&tokens) {
            tokens.pop();
            offsets.pop();
        }
        let has_bytes = |range: &Range<usize>| !range.is_empty();
        let Some(first) = offsets.iter().position(has_bytes) else { return Ok(Sample::skipped()) };
        let last = offsets.iter().rposition(has_bytes).unwrap_or(first);
        // Tokens that the tokenizer adds have no bytes; those at the end
        // contribute like the EOS token.
        let target = from..whole.len();
        let counted = |(at, range)| at > last || (at >= first && overlaps(range, &target));
        let mut mask: Vec<bool> = offsets.iter().enumerate().map(counted).collect();
        if let Some(end) = self.missing_eos(&tokens) {
            tokens.push(end);
            mask.push(true);
        }
        Ok(self.truncate(tokens, mask))
    }

    fn chat(
        &self,
        messages: &[Message],
        context: &ChatContext,
        origin: &Origin,
    ) -> Result<Sample, DataError> {
        let Origin { file, line } = origin.clone();
        let Some(template) = self.templates.pick(context) else {
            return Err(DataError::NoTemplate { file, line });
        };
        if self.train_on == TrainOn::All {
            let text = chat::render(template, messages, context).map_err(|source| DataError::Chat {
                file,
                line,
                source,
            })?;
            let tokens = self.encode(&text, Special::Plain, origin)?.ids;
            let mask = vec![true; tokens.len()];
            return Ok(self.truncate(tokens, mask));
        }
        let rendered = chat::render_with_spans(template, messages, context).map_err(|error| match error {
            LocateError::Chat(source) => DataError::Chat { file, line, source },
            LocateError::NotFound(at) => DataError::UnlocatedMessage { file, line, message: at + 1 },
        })?;
        let encoded = self.encode(&rendered.text, Special::Plain, origin)?;
        let spans: Vec<Range<usize>> =
            rendered.assistant.iter().map(|span| self.span_bytes(*span, &rendered.text, &encoded)).collect();
        let mask =
            encoded.offsets.iter().map(|range| spans.iter().any(|span| overlaps(range, span))).collect();
        Ok(self.truncate(encoded.ids, mask))
    }

    /// The bytes of an assistant message, including the token that ends it.
    fn span_bytes(&self, span: AssistantSpan, text: &str, encoded: &Encoded) -> Range<usize> {
        let special = || {
            let tokens = encoded.ids.iter().zip(&encoded.offsets);
            tokens.filter(|(id, _)| self.tokenizer.is_special(**id)).map(|(_, range)| range)
        };
        let AssistantSpan { start, end } = span;
        let end = match end {
            SpanEnd::Turn(end) => {
                let last = special().rfind(|token| token.start >= start && token.end <= end);
                let blank = |token: &&Range<usize>| {
                    text.as_bytes()[token.end..end].iter().all(u8::is_ascii_whitespace)
                };
                last.filter(blank).map_or(end, |token| token.end)
            }
            SpanEnd::SpecialToken { words, next } => {
                let first = special().find(|token| token.start >= words && token.end <= next);
                first.map_or(words, |token| token.end)
            }
        };
        start..end.max(start)
    }

    fn encode(&self, text: &str, special: Special, origin: &Origin) -> Result<Encoded, DataError> {
        self.tokenizer.encode_with_offsets(text, special).map_err(|source| DataError::Encode {
            file: origin.file.clone(),
            line: origin.line,
            source,
        })
    }

    /// Whether a text starts with the BOS token that the tokenizer adds.
    fn has_two_bos(&self, tokens: &[u32]) -> bool {
        matches!((tokens, self.tokenizer.bos()), ([first, second, ..], Some(bos)) if [*first, *second] == [bos; 2])
    }

    /// Whether a text ends with the EOS token that the tokenizer adds.
    fn has_two_eos(&self, tokens: &[u32]) -> bool {
        matches!((tokens, self.tokenizer.eos()), ([.., before, last], [eos, ..]) if [before, last] == [eos; 2])
    }

    /// The EOS token, unless the text ends with it.
    fn missing_eos(&self, tokens: &[u32]) -> Option<u32> {
        let end = self.tokenizer.eos().first().copied()?;
        (tokens.last() != Some(&end)).then_some(end)
    }

    /// Truncates a prompt or conversation at the end: a completion without its
    /// prompt would teach the wrong thing.
    fn truncate(&self, mut tokens: Vec<u32>, mut mask: Vec<bool>) -> Sample {
        if self.train_on == TrainOn::All {
            mask.fill(true);
        }
        let status =
            if tokens.len() > self.max_tokens { DocumentStatus::Truncated } else { DocumentStatus::Whole };
        tokens.truncate(self.max_tokens);
        mask.truncate(self.max_tokens);
        Sample { tokens, mask, status }
    }
}

/// Whether a token has a byte of a span. A token without bytes belongs to what
/// follows it.
fn overlaps(token: &Range<usize>, span: &Range<usize>) -> bool {
    token.start < span.end && (token.end > span.start || token.start >= span.start)
}
