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

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use weightloom_hub::text::{
    ChatContext, ChatTemplate, ChatTemplates, Encoded, GenerationPrompt, Message, Special, Tokenizer,
};

use super::chat::{self, AssistantSpan, LocateError, SpanEnd};
use super::error::DataError;
use super::parts::Part;
use super::pieces::{self, MAX_WHOLE, PiecesError};
use super::preference::{SecondSample, Supervision};
use super::record::{Content, Origin};
use super::status::{DocumentStatus, DropReason};
use crate::config::TrainOn;

/// The roles that chat templates know.
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "ipython"];

/// A tokenized document. Empty if dropped, else two tokens or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) tokens: Vec<u32>,
    /// Whether each token contributes to the loss.
    pub(super) mask: Vec<bool>,
    pub(super) status: DocumentStatus,
    /// Number of tokens before truncation.
    pub(super) full_length: usize,
    /// The roles for which it is dropped.
    pub(super) unknown_roles: BTreeSet<String>,
    /// The format of its record, if that can be read.
    pub(super) format: Option<&'static str>,
    /// Why its record cannot be read.
    pub(super) problem: Option<String>,
    /// The second sequence, of a preference.
    pub(super) second: Option<SecondSample>,
}

impl Sample {
    fn new(tokens: Vec<u32>, mask: Vec<bool>) -> Self {
        let full_length = tokens.len();
        let (status, unknown_roles) = (DocumentStatus::Whole, BTreeSet::new());
        let (format, problem, second) = (None, None, None);
        Self { tokens, mask, status, full_length, unknown_roles, format, problem, second }
    }

    /// The sample of a record that cannot be read.
    pub(super) fn unreadable(error: &DataError) -> Self {
        let sample = Self::new(Vec::new(), Vec::new()).dropped(DropReason::BadLine);
        Self { problem: Some(error.to_string()), ..sample }
    }

    /// The sample without its tokens.
    pub(super) fn dropped(self, reason: DropReason) -> Self {
        let status = DocumentStatus::Dropped(reason);
        Self { tokens: Vec::new(), mask: Vec::new(), second: None, status, ..self }
    }

    pub(super) fn targets(&self) -> usize {
        let second = self.second.iter().flat_map(|second| &second.mask);
        self.mask.iter().chain(second).filter(|&&masked| masked).count()
    }

    /// The number of tokens, where two sequences share their first.
    pub(super) fn length(&self) -> usize {
        let second = self.second.as_ref().map_or(0, |second| second.tokens.len().saturating_sub(1));
        self.tokens.len() + second
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
    /// The documents that the loss trains on.
    pub(super) supervision: Supervision,
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
    pub(super) fn sample(&self, content: Content, part: Part, origin: &Origin) -> Result<Sample, DataError> {
        let sample = match self.plain_content(content, origin)? {
            Content::Text(text) => self.text(&text, part, origin)?,
            Content::Prompt { prompt, completion } => self.prompt(prompt, &completion, origin)?,
            Content::Chat { messages, tools } => {
                let context = ChatContext { tools, ..ChatContext::default() };
                self.chat(&messages, &context, origin)?
            }
            Content::Preference(pair) => return self.preference(&pair, origin),
            Content::Labelled(labelled) => return self.labelled(&labelled, &labelled, origin),
        };
        self.checked(sample, origin)
    }

    /// The sample, whose first token never contributes. Fails if a token is not in the
    /// vocabulary; drops it if nothing contributes.
    pub(super) fn checked(&self, mut sample: Sample, origin: &Origin) -> Result<Sample, DataError> {
        if let Some(&token) = sample.tokens.iter().find(|&&token| token as usize >= self.vocabulary) {
            let Origin { file, line } = origin.clone();
            return Err(DataError::Token { file, line, token, vocabulary: self.vocabulary });
        }
        if let Some(first) = sample.mask.first_mut() {
            *first = false;
        }
        if sample.targets() > 0 {
            return Ok(sample);
        }
        let reason = match sample.status {
            DocumentStatus::Dropped(reason) => reason,
            DocumentStatus::Whole | DocumentStatus::Truncated => DropReason::NothingToTrain,
        };
        Ok(sample.dropped(reason))
    }

    fn text(&self, text: &str, part: Part, origin: &Origin) -> Result<Sample, DataError> {
        let mut tokens = pieces::encode_part(&self.tokenizer, text, part).map_err(|error| match error {
            PiecesError::Text(source) => {
                DataError::Encode { file: origin.file.clone(), line: origin.line, source }
            }
            PiecesError::TooLarge => too_large(origin),
        })?;
        let is_marker =
            |token: &u32| self.tokenizer.bos() == Some(*token) || self.tokenizer.eos().contains(token);
        if tokens.iter().all(is_marker) {
            return Ok(Sample::new(tokens, Vec::new()).dropped(DropReason::NothingToTrain));
        }
        if part.starts_document() && self.has_two_bos(&tokens) {
            tokens.remove(0);
        }
        if part.ends_document() {
            if self.has_two_eos(&tokens) {
                tokens.pop();
            }
            tokens.extend(self.missing_eos(&tokens));
        }
        let mask = vec![true; tokens.len()];
        Ok(Sample::new(tokens, mask))
    }

    pub(super) fn prompt(
        &self,
        prompt: String,
        completion: &str,
        origin: &Origin,
    ) -> Result<Sample, DataError> {
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
        let Some(first) = offsets.iter().position(has_bytes) else {
            return Ok(Sample::new(tokens, Vec::new()).dropped(DropReason::NothingToTrain));
        };
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
        if rendered.assistant.is_empty() {
            return Ok(without_answer(messages, encoded.ids));
        }
        let spans: Vec<Range<usize>> =
            rendered.assistant.iter().map(|span| self.span_bytes(*span, &rendered.text, &encoded)).collect();
        let mask =
            encoded.offsets.iter().map(|range| spans.iter().any(|span| overlaps(range, span))).collect();
        Ok(self.truncate(encoded.ids, mask))
    }

    /// The tokens of a conversation with one user message, up to the answer.
    pub(super) fn chat_prompt(&self, prompt: &str) -> Result<Vec<u32>, DataError> {
        let context = ChatContext::default();
        let Some(template) = self.templates.pick(&context) else {
            return plain_prompt(&self.tokenizer, prompt);
        };
        let messages = [Message::new("user", prompt)];
        let text = template
            .render(&messages, GenerationPrompt::Add, &context)
            .map_err(|source| DataError::SampleChat { prompt: prompt.to_owned(), source })?;
        let failed = |source| DataError::SamplePrompt { prompt: prompt.to_owned(), source };
        self.tokenizer.encode(&text, Special::Plain).map_err(failed)
    }

    /// The bytes of an assistant message, including the token that ends it.
    pub(super) fn span_bytes(&self, span: AssistantSpan, text: &str, encoded: &Encoded) -> Range<usize> {
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

    /// Tokenizes a rendered conversation.
    pub(super) fn encode_rendered(&self, text: &str, origin: &Origin) -> Result<Encoded, DataError> {
        self.encode(text, Special::Plain, origin)
    }

    fn encode(&self, text: &str, special: Special, origin: &Origin) -> Result<Encoded, DataError> {
        if text.len() > MAX_WHOLE {
            return Err(too_large(origin));
        }
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
    pub(super) fn truncate(&self, tokens: Vec<u32>, mut mask: Vec<bool>) -> Sample {
        if self.train_on == TrainOn::All && self.supervision == Supervision::Tokens {
            mask.fill(true);
        }
        let mut sample = Sample::new(tokens, mask);
        if sample.tokens.len() <= self.max_tokens {
            return sample;
        }
        let (kept, cut) = sample.mask.split_at(self.max_tokens);
        // The first token never contributes.
        let answered = kept.iter().skip(1).any(|&counts| counts);
        let cut_off = !answered && cut.iter().any(|&counts| counts);
        sample.tokens.truncate(self.max_tokens);
        sample.mask.truncate(self.max_tokens);
        if cut_off {
            return sample.dropped(DropReason::AnswerCutOff);
        }
        sample.status = DocumentStatus::Truncated;
        sample
    }
}

/// The tokens of a prompt.
pub(super) fn plain_prompt(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>, DataError> {
    let failed = |source| DataError::SamplePrompt { prompt: prompt.to_owned(), source };
    let mut tokens = tokenizer.encode(prompt, Special::Add).map_err(failed)?;
    if tokens.is_empty() {
        tokens.extend(tokenizer.bos().or_else(|| tokenizer.eos().first().copied()));
    }
    Ok(tokens)
}

/// The error of a document that is tokenized as a whole.
fn too_large(origin: &Origin) -> DataError {
    let Origin { file, line } = origin.clone();
    let what = "the size of a document that cannot be tokenized in pieces, in bytes,";
    DataError::TooLarge { file, line, what, limit: MAX_WHOLE as u64 }
}

/// A conversation without assistant messages.
pub(super) fn without_answer(messages: &[Message], tokens: Vec<u32>) -> Sample {
    let roles = messages.iter().map(Message::role).filter(|role| !ROLES.contains(role));
    let unknown_roles: BTreeSet<String> = roles.map(str::to_owned).collect();
    let reason = match unknown_roles.is_empty() {
        true => DropReason::NoAssistantMessage,
        false => DropReason::UnknownRoles,
    };
    Sample { unknown_roles, ..Sample::new(tokens, Vec::new()).dropped(reason) }
}

/// Whether a token has a byte of a span. A token without bytes belongs to what
/// follows it.
pub(super) fn overlaps(token: &Range<usize>, span: &Range<usize>) -> bool {
    token.start < span.end && (token.end > span.start || token.start >= span.start)
}
