//! Locating assistant messages in a rendered conversation.
//!
//! A chat template is a program, so its output does not mark who wrote what.
//! Rendering the messages before an assistant message with the generation prompt
//! ends where that message starts; rendering the messages up to and including it
//! ends where it ends. Both must be prefixes of the whole text, which is checked.
//!
//! Some templates render a message differently when others follow, for example
//! those that drop earlier reasoning; then the texts are not prefixes. In that
//! case the message is replaced by other words, twice, and the part of the text
//! that changes is the message. It ends with the first special token after it.
//! If neither works, the template is rejected.

use weightloom_hub::text::{ChatContext, ChatError, ChatTemplate, GenerationPrompt, Message, OrderedJson};

const ASSISTANT: &str = "assistant";

/// Replacements for a message. They share neither a prefix nor a suffix.
const WORDS: [&str; 2] = ["Quince", "Maple wood"];

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) text: String,
    pub(super) assistant: Vec<AssistantSpan>,
}

/// An assistant message, in bytes of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AssistantSpan {
    pub(super) start: usize,
    pub(super) end: SpanEnd,
}

/// Where an assistant message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanEnd {
    /// At this byte, after everything that the template appends.
    Turn(usize),
    /// After the first special token between the end of the `words` and the
    /// `next` message, or else after the words.
    SpecialToken { words: usize, next: usize },
}

/// Why assistant messages cannot be located.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocateError {
    /// The template failed.
    Chat(ChatError),
    /// The message with this index is not in the text.
    NotFound(usize),
}

/// Renders a conversation.
pub(super) fn render(
    template: &ChatTemplate,
    messages: &[Message],
    context: &ChatContext,
) -> Result<String, ChatError> {
    template.render(messages, GenerationPrompt::Leave, context)
}

/// Renders a conversation and locates its assistant messages.
pub(super) fn render_with_spans(
    template: &ChatTemplate,
    messages: &[Message],
    context: &ChatContext,
) -> Result<Rendered, LocateError> {
    let text = render(template, messages, context).map_err(LocateError::Chat)?;
    let chat = Chat { template, messages, context, text: &text };
    let mut assistant = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        if message.role() == ASSISTANT {
            assistant.push(chat.span(at).ok_or(LocateError::NotFound(at))?);
        }
    }
    Ok(Rendered { text, assistant })
}

struct Chat<'a> {
    template: &'a ChatTemplate,
    messages: &'a [Message],
    context: &'a ChatContext,
    text: &'a str,
}

impl Chat<'_> {
    fn span(&self, at: usize) -> Option<AssistantSpan> {
        let start = self.start(at);
        let turn = self.turn_end(at).filter(|&end| start.is_none_or(|start| start <= end));
        if let (Some(start), Some(end)) = (start, turn) {
            return Some(AssistantSpan { start, end: SpanEnd::Turn(end) });
        }
        let (from, words) = self.changed(at)?;
        let start = start.filter(|&start| start <= from).unwrap_or(from);
        let next = || {
            let next = (at + 1..self.messages.len()).find_map(|other| self.changed(other));
            next.map_or(self.text.len(), |(next, _)| next.max(words))
        };
        let end = turn.map_or_else(|| SpanEnd::SpecialToken { words, next: next() }, SpanEnd::Turn);
        Some(AssistantSpan { start, end })
    }

    /// The start of an assistant message: after the messages before it and the
    /// generation prompt.
    fn start(&self, at: usize) -> Option<usize> {
        let before = &self.messages[..at];
        let opened = self.template.render(before, GenerationPrompt::Add, self.context).ok()?;
        if !shows_last(&opened, before) {
            return None;
        }
        if self.text.starts_with(&opened) {
            return Some(opened.len());
        }
        // Some generation prompts contain more than earlier turns have, such as
        // the start of a reasoning block.
        let closed = render(self.template, before, self.context).ok()?;
        let same = self.text.starts_with(&closed) && shows_last(&closed, before);
        same.then(|| common_prefix(&opened, self.text)).filter(|&start| start >= closed.len())
    }

    /// The end of a message, including what the template appends.
    fn turn_end(&self, at: usize) -> Option<usize> {
        if at + 1 == self.messages.len() {
            return Some(self.text.len());
        }
        let prefix = render(self.template, &self.messages[..=at], self.context).ok()?;
        self.text.starts_with(&prefix).then_some(prefix.len())
    }

    /// The range of the text that changes when a message is replaced.
    fn changed(&self, at: usize) -> Option<(usize, usize)> {
        let (mut start, mut suffix) = (usize::MAX, usize::MAX);
        for words in WORDS {
            let mut messages = self.messages.to_vec();
            messages[at] = messages[at].clone().with("content", words);
            let other = render(self.template, &messages, self.context).ok()?;
            // The message may consist of these very words.
            if other != self.text {
                start = start.min(common_prefix(&other, self.text));
                suffix = suffix.min(common_suffix(&other, self.text));
            }
        }
        // If the text never changes, the message is not in it.
        let end = self.text.len().checked_sub(suffix)?;
        // Common prefix and suffix may overlap.
        Some((start, end.max(start)))
    }
}

/// Whether a text contains the last message. A template that omits it does not
/// show where it ends.
fn shows_last(text: &str, messages: &[Message]) -> bool {
    match messages.last().and_then(|message| message.get("content")) {
        Some(OrderedJson::Text(content)) => text.contains(content.trim()),
        _ => true,
    }
}

fn common_prefix(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
}

fn common_suffix(one: &str, other: &str) -> usize {
    one.bytes().rev().zip(other.bytes().rev()).take_while(|(one, other)| one == other).count()
}
