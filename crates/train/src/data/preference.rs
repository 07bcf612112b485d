//! Preferences: documents with two completions of a prompt, or with a judged one.
//!
//! A preference becomes a row of two sequences: the prompt with the chosen and with
//! the rejected completion. A labelled completion becomes one too: the second is
//! its prompt with the completion of the document before it, from which KTO
//! estimates how far the model is from its reference. Only completions contribute.

use weightloom_hub::DataKind;
use weightloom_hub::text::{ChatContext, Message, OrderedJson};

use super::chat::{self, LocateError};
use super::conversation::{self, message_list};
use super::error::DataError;
use super::parts::Part;
use super::record::{Content, Origin, Parsed, Record, kind};
use super::row::{PairKind, Row, RowBuilder, RowPair};
use super::sample::{Sample, Sampler, overlaps};
use super::status::DocumentStatus;
use super::stream::RowStream;

/// The documents that a loss trains on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supervision {
    /// Any text: the next token is learned.
    #[default]
    Tokens,
    /// Pairs of a chosen and a rejected completion.
    Preferences,
    /// Completions that are desirable or not.
    Labels,
}

impl Supervision {
    /// Sequences of a row.
    pub fn sequences(self) -> usize {
        match self {
            Self::Tokens => 1,
            Self::Preferences | Self::Labels => 2,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Tokens => "text, prompts with completions, or conversations",
            Self::Preferences => "pairs of a chosen and a rejected completion",
            Self::Labels => "completions with a label",
        }
    }
}

/// A prompt and a completion of it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Completion {
    /// Plain text.
    Text { prompt: String, completion: String },
    /// Messages, with the tools that the model may call.
    Chat { prompt: Vec<Message>, completion: Vec<Message>, tools: Option<Vec<OrderedJson>> },
}

/// Two completions of a prompt.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Preference {
    pub chosen: Completion,
    pub rejected: Completion,
}

/// A completion that is desirable or not.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct LabelledCompletion {
    pub completion: Completion,
    pub desirable: bool,
}

impl Completion {
    /// The kind of document that the prompt with the completion is.
    pub(super) fn kind(&self) -> DataKind {
        match self {
            Self::Text { .. } => DataKind::PromptCompletion,
            Self::Chat { .. } => DataKind::Chat,
        }
    }

    /// The document that the prompt with the completion is.
    fn content(self) -> Content {
        match self {
            Self::Text { prompt, completion } => Content::Prompt { prompt, completion },
            Self::Chat { prompt: mut messages, completion, tools } => {
                messages.extend(completion);
                Content::Chat { messages, tools }
            }
        }
    }

    /// The prompt with the completion of another.
    fn with_completion_of(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Text { prompt, .. }, Self::Text { completion, .. }) => {
                Self::Text { prompt: prompt.clone(), completion: completion.clone() }
            }
            (Self::Text { prompt, .. }, Self::Chat { completion, tools, .. }) => Self::Chat {
                prompt: vec![Message::new("user", prompt.as_str())],
                completion: completion.clone(),
                tools: tools.clone(),
            },
            (Self::Chat { prompt, tools, .. }, other) => Self::Chat {
                prompt: prompt.clone(),
                completion: match other {
                    Self::Chat { completion, .. } => completion.clone(),
                    Self::Text { completion, .. } => vec![Message::new(ANSWER, completion.as_str())],
                },
                tools: tools.clone(),
            },
        }
    }
}

impl Preference {
    /// The kind of document that each completion is with its prompt.
    pub(super) fn kind(&self) -> DataKind {
        self.chosen.kind()
    }
}

/// A string or a list of messages.
#[derive(Clone)]
enum Turns {
    Text(String),
    Messages(Vec<Message>),
}

impl Turns {
    /// As messages; a string is one of this role.
    fn messages(self, role: &str) -> Vec<Message> {
        match self {
            Self::Text(text) => vec![Message::new(role, text)],
            Self::Messages(messages) => messages,
        }
    }
}

fn turns(record: &mut Record<'_>, key: &'static str) -> Result<Turns, DataError> {
    match record.take(key)? {
        OrderedJson::Text(text) => Ok(Turns::Text(text)),
        list @ OrderedJson::List(_) => Ok(Turns::Messages(message_list(record, key, list)?)),
        other => Err(record.wrong(key.to_owned(), "a string or a list of messages", kind(&other))),
    }
}

fn has(record: &Record<'_>, key: &str) -> bool {
    record.fields.iter().any(|(name, data)| name == key && *data != OrderedJson::Null)
}

/// Parses a preference.
pub(super) fn preference(record: &mut Record<'_>) -> Result<Preference, DataError> {
    let prompt = has(record, "prompt").then(|| turns(record, "prompt")).transpose()?;
    let (chosen, rejected) = (turns(record, "chosen")?, turns(record, "rejected")?);
    let tools = conversation::tools(record)?;
    let text = |prompt: &str, completion: &str| Completion::Text {
        prompt: prompt.to_owned(),
        completion: completion.to_owned(),
    };
    let (prompt, chosen, rejected) = match (prompt, chosen, rejected) {
        (Some(Turns::Text(prompt)), Turns::Text(chosen), Turns::Text(rejected)) => {
            return Ok(Preference { chosen: text(&prompt, &chosen), rejected: text(&prompt, &rejected) });
        }
        (None, Turns::Text(chosen), Turns::Text(rejected)) => {
            let (prompt, of_chosen) = chosen.split_at(shared_text(&chosen, &rejected));
            let of_rejected = &rejected[prompt.len()..];
            return Ok(Preference { chosen: text(prompt, of_chosen), rejected: text(prompt, of_rejected) });
        }
        (prompt, chosen, rejected) => {
            (prompt.map(|prompt| prompt.messages("user")), chosen.messages(ANSWER), rejected.messages(ANSWER))
        }
    };
    // Completions may repeat the prompt, or have it only there.
    let repeated = &chosen[..shared_messages(&chosen, &rejected)];
    let prompt = match prompt {
        Some(prompt) if !ends_with(repeated, &prompt) => prompt,
        _ => repeated.to_vec(),
    };
    let of = |completion: Vec<Message>| {
        let own = if begins_with(&completion, &prompt) { prompt.len() } else { 0 };
        Completion::Chat {
            prompt: prompt.clone(),
            completion: completion[own..].to_vec(),
            tools: tools.clone(),
        }
    };
    Ok(Preference { chosen: of(chosen), rejected: of(rejected) })
}

const ANSWER: &str = "assistant";

/// Whether two messages say the same, whatever the order of their keys.
fn is_same(one: &Message, other: &Message) -> bool {
    let keys = ["content", "tool_calls", "name"];
    one.role() == other.role() && keys.iter().all(|key| one.get(key) == other.get(key))
}

/// Messages that both conversations begin with. At least one of each is its own.
fn shared_messages(one: &[Message], other: &[Message]) -> usize {
    let most = one.len().min(other.len()).saturating_sub(1);
    one.iter().zip(other).take(most).take_while(|(one, other)| is_same(one, other)).count()
}

fn begins_with(messages: &[Message], start: &[Message]) -> bool {
    messages.len() > start.len() && messages.iter().zip(start).all(|(one, other)| is_same(one, other))
}

fn ends_with(messages: &[Message], end: &[Message]) -> bool {
    let from = messages.len().checked_sub(end.len());
    from.is_some_and(|from| messages[from..].iter().zip(end).all(|(one, other)| is_same(one, other)))
}

/// Bytes that both texts begin with, without a space at their end: it belongs to
/// the first word of the completion.
fn shared_text(one: &str, other: &str) -> usize {
    let pairs = one.char_indices().zip(other.chars());
    let differ = pairs.skip_while(|((_, one), other)| one == other).map(|((at, _), _)| at).next();
    let shared = differ.unwrap_or(one.len().min(other.len()));
    one[..shared].strip_suffix(' ').map_or(shared, str::len)
}

/// Whether a prompt with a completion has a label.
pub(super) fn is_labelled(record: &Record<'_>) -> bool {
    record.fields.iter().any(|(name, data)| name == "label" && matches!(data, OrderedJson::Bool(_)))
}

/// Parses a labelled completion.
pub(super) fn labelled(record: &mut Record<'_>) -> Result<LabelledCompletion, DataError> {
    let desirable = match record.take("label")? {
        OrderedJson::Bool(desirable) => desirable,
        other => return Err(record.wrong("label".to_owned(), "true or false", kind(&other))),
    };
    let completion = match (turns(record, "prompt")?, turns(record, "completion")?) {
        (Turns::Text(prompt), Turns::Text(completion)) => Completion::Text { prompt, completion },
        (prompt, completion) => Completion::Chat {
            prompt: prompt.messages("user"),
            completion: completion.messages(ANSWER),
            tools: conversation::tools(record)?,
        },
    };
    Ok(LabelledCompletion { completion, desirable })
}

/// The second sequence of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecondSample {
    pub(super) kind: PairKind,
    pub(super) tokens: Vec<u32>,
    pub(super) mask: Vec<bool>,
}

impl Sampler {
    /// The content of a document for another loss than of preferences.
    pub(super) fn plain_content(&self, content: Content, origin: &Origin) -> Result<Content, DataError> {
        match (content, self.supervision) {
            (content @ Content::Preference(_), Supervision::Preferences)
            | (content @ Content::Labelled(_), Supervision::Labels) => Ok(content),
            (Content::Preference(_), _) => Err(self.other_kind(Supervision::Preferences, origin)),
            (Content::Labelled(labelled), Supervision::Tokens) => Ok(labelled.completion.content()),
            (Content::Labelled(_), _) => Err(self.other_kind(Supervision::Labels, origin)),
            (content, Supervision::Tokens) => Ok(content),
            (_, _) => Err(self.other_kind(Supervision::Tokens, origin)),
        }
    }

    fn other_kind(&self, found: Supervision, origin: &Origin) -> DataError {
        let Origin { file, line } = origin.clone();
        let (found, needed) = (found.describe(), self.supervision.describe());
        DataError::OtherDocuments { file, line, found, needed }
    }

    /// Tokenizes a preference.
    pub(super) fn preference(&self, pair: &Preference, origin: &Origin) -> Result<Sample, DataError> {
        let [chosen, rejected] = [&pair.chosen, &pair.rejected]
            .map(|completion| self.completion(completion, origin).and_then(|it| self.checked(it, origin)));
        let (mut chosen, mut rejected) = (chosen?, rejected?);
        chosen.full_length += rejected.full_length.saturating_sub(1);
        chosen.unknown_roles.append(&mut rejected.unknown_roles);
        match (chosen.status, rejected.status) {
            (DocumentStatus::Dropped(reason), _) | (_, DocumentStatus::Dropped(reason)) => {
                return Ok(chosen.dropped(reason));
            }
            (_, DocumentStatus::Truncated) => chosen.status = DocumentStatus::Truncated,
            (_, DocumentStatus::Whole) => {}
        }
        let Sample { tokens, mask, .. } = rejected;
        chosen.second = Some(SecondSample { kind: PairKind::Rejected, tokens, mask });
        Ok(chosen)
    }

    /// Tokenizes a labelled completion, and its prompt with the completion of another
    /// document. The latter is empty where it cannot be trained on.
    pub(super) fn labelled(
        &self,
        labelled: &LabelledCompletion,
        other: &LabelledCompletion,
        origin: &Origin,
    ) -> Result<Sample, DataError> {
        let LabelledCompletion { completion, desirable } = labelled;
        let mut sample = self.checked(self.completion(completion, origin)?, origin)?;
        if matches!(sample.status, DocumentStatus::Dropped(_)) {
            return Ok(sample);
        }
        let mismatched = completion.with_completion_of(&other.completion);
        let mismatched = self.checked(self.completion(&mismatched, origin)?, origin)?;
        sample.full_length += mismatched.tokens.len().saturating_sub(1);
        let kind = PairKind::Mismatched { desirable: *desirable };
        let Sample { tokens, mask, .. } = mismatched;
        sample.second = Some(SecondSample { kind, tokens, mask });
        Ok(sample)
    }

    /// Tokenizes a prompt with its completion. Only the completion contributes,
    /// whatever `data.train_on` says.
    fn completion(&self, completion: &Completion, origin: &Origin) -> Result<Sample, DataError> {
        match completion {
            Completion::Text { prompt, completion } => self.prompt(prompt.clone(), completion, origin),
            Completion::Chat { prompt, completion, tools } => {
                let messages: Vec<Message> = prompt.iter().chain(completion).cloned().collect();
                let before = prompt.iter().filter(|message| message.role() == ANSWER).count();
                let context = ChatContext { tools: tools.clone(), ..ChatContext::default() };
                self.last_answers(&messages, before, &context, origin)
            }
        }
    }

    /// Tokenizes a conversation of which all but the first `before` assistant messages
    /// contribute.
    fn last_answers(
        &self,
        messages: &[Message],
        before: usize,
        context: &ChatContext,
        origin: &Origin,
    ) -> Result<Sample, DataError> {
        let Origin { file, line } = origin.clone();
        let Some(template) = self.templates.pick(context) else {
            return Err(DataError::NoTemplate { file, line });
        };
        let rendered = chat::render_with_spans(template, messages, context).map_err(|error| match error {
            LocateError::Chat(source) => DataError::Chat { file, line, source },
            LocateError::NotFound(at) => DataError::UnlocatedMessage { file, line, message: at + 1 },
        })?;
        let encoded = self.encode_rendered(&rendered.text, origin)?;
        if rendered.assistant.len() <= before {
            return Ok(super::sample::without_answer(messages, encoded.ids));
        }
        let spans = rendered.assistant.iter().skip(before);
        let spans: Vec<_> = spans.map(|span| self.span_bytes(*span, &rendered.text, &encoded)).collect();
        let mask =
            encoded.offsets.iter().map(|range| spans.iter().any(|span| overlaps(range, span))).collect();
        Ok(self.truncate(encoded.ids, mask))
    }
}

impl RowStream {
    /// Tokenizes a document. A labelled one needs the one before it in the data, and
    /// the first needs the last, so that the sample does not depend on the order.
    pub(super) fn tokenize(&self, document: usize) -> Result<Sample, DataError> {
        match self.tokenized(document) {
            Err(error) if self.documents.skips(&error) => Ok(Sample::unreadable(&error)),
            tokenized => tokenized,
        }
    }

    fn tokenized(&self, document: usize) -> Result<Sample, DataError> {
        let (origin, Parsed { content, format }) = self.documents.read(document)?;
        let sample = match (content, self.sampler.supervision) {
            (Content::Preference(pair), Supervision::Preferences) => self.sampler.preference(&pair, &origin),
            (Content::Labelled(labelled), Supervision::Labels) => {
                match self.document_before(document)? {
                    None => self.sampler.labelled(&labelled, &labelled, &origin),
                    Some((_, Parsed { content: Content::Labelled(other), .. })) => {
                        self.sampler.labelled(&labelled, &other, &origin)
                    }
                    // An error: documents of several kinds.
                    Some((origin, Parsed { content, .. })) => {
                        self.sampler.sample(content, Part::Whole, &origin)
                    }
                }
            }
            (content, _) => self.sampler.sample(content, self.documents.part(document), &origin),
        };
        Ok(Sample { format: Some(format), ..sample? })
    }

    /// The nearest document before one that can be read; before the first comes the last.
    fn document_before(&self, document: usize) -> Result<Option<(Origin, Parsed)>, DataError> {
        let all = self.documents.len();
        for back in 1..all {
            match self.documents.read((document + all - back) % all) {
                Err(error) if self.documents.skips(&error) => {}
                read => return read.map(Some),
            }
        }
        Ok(None)
    }

    /// The row of a document.
    pub(super) fn pair_row(&mut self, document: usize) -> Result<Row, DataError> {
        let (size, pad) = (self.size, self.pad);
        let sample = self.sample(document)?;
        let mut first = RowBuilder::new(size);
        first.push(sample, 0, sample.tokens.len());
        let mut row = first.finish(pad);
        if let Some(SecondSample { kind, tokens, mask }) = &sample.second {
            let other = RowBuilder::of(tokens, mask, size).finish(pad);
            row.pair = Some(Box::new(RowPair { kind: *kind, document: document as u64, other }));
        }
        Ok(row)
    }
}
