//! Which parts of a rendered conversation its assistant has written.
//!
//! A template is a program; nothing in its text says what belongs to whom. So
//! it is asked. What it renders of the messages before an answer, with what
//! begins an answer, ends where the answer begins; what it renders of the
//! messages up to the answer ends where the answer ends. Both must be
//! beginnings of the whole, which is checked.
//!
//! Some templates render a message differently when others follow, such as
//! those that drop earlier thoughts; then these are no beginnings. In that case
//! the answer is exchanged for other words, twice, and what changes in the
//! whole is the answer. The tokenizer says what ends it: the first special
//! token behind it. A template that shows neither is an error.

use weightloom_hub::text::{ChatContext, ChatError, ChatTemplate, GenerationPrompt, Message, OrderedJson};

/// Who writes what is to be learned.
const ASSISTANT: &str = "assistant";

/// Words to exchange for an answer. No text begins, or ends, like both.
const WORDS: [&str; 2] = ["Quince", "Maple wood"];

/// A conversation as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) text: String,
    pub(super) answers: Vec<Answer>,
}

/// What an assistant has written, in bytes of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) start: usize,
    pub(super) end: End,
}

/// Where an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Here, with all that the template puts behind it.
    Turn(usize),
    /// With the first special token from `words` up to `next`, where another
    /// message begins, and else with its words.
    Mark { words: usize, next: usize },
}

/// Why answers are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unclear {
    /// The conversation cannot be rendered.
    Chat(ChatError),
    /// This message, from zero, is not seen in the text.
    Untold(usize),
}

/// The text alone.
pub(super) fn render(
    template: &ChatTemplate,
    messages: &[Message],
    context: &ChatContext,
) -> Result<String, ChatError> {
    template.render(messages, GenerationPrompt::Leave, context)
}

/// The text, and what in it was written by an assistant.
pub(super) fn render_answers(
    template: &ChatTemplate,
    messages: &[Message],
    context: &ChatContext,
) -> Result<Rendered, Unclear> {
    let text = render(template, messages, context).map_err(Unclear::Chat)?;
    let chat = Chat { template, messages, context, text: &text };
    let mut answers: Vec<Answer> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        if message.role() == ASSISTANT {
            answers.push(chat.answer(at).ok_or(Unclear::Untold(at))?);
        }
    }
    Ok(Rendered { text, answers })
}

struct Chat<'a> {
    template: &'a ChatTemplate,
    messages: &'a [Message],
    context: &'a ChatContext,
    text: &'a str,
}

impl Chat<'_> {
    fn answer(&self, at: usize) -> Option<Answer> {
        let start = self.start(at);
        let turn = self.turn_end(at).filter(|&end| start.is_none_or(|start| start <= end));
        if let (Some(start), Some(end)) = (start, turn) {
            return Some(Answer { start, end: End::Turn(end) });
        }
        let (from, words) = self.changed(at)?;
        let start = start.filter(|&start| start <= from).unwrap_or(from);
        let next = || {
            let next = (at + 1..self.messages.len()).find_map(|other| self.changed(other));
            next.map_or(self.text.len(), |(next, _)| next.max(words))
        };
        let end = turn.map_or_else(|| End::Mark { words, next: next() }, End::Turn);
        Some(Answer { start, end })
    }

    /// Where an answer begins: behind all before it, and what begins it.
    fn start(&self, at: usize) -> Option<usize> {
        let before = &self.messages[..at];
        let opened = self.template.render(before, GenerationPrompt::Add, self.context).ok()?;
        if !shows_last(&opened, before) {
            return None;
        }
        if self.text.starts_with(&opened) {
            return Some(opened.len());
        }
        // Some begin an answer with more than what stands before those of
        // earlier turns, such as the mark of a thought.
        let closed = render(self.template, before, self.context).ok()?;
        let same = self.text.starts_with(&closed) && shows_last(&closed, before);
        same.then(|| same_start(&opened, self.text)).filter(|&start| start >= closed.len())
    }

    /// Where the text of a message ends with all that belongs to it.
    fn turn_end(&self, at: usize) -> Option<usize> {
        if at + 1 == self.messages.len() {
            return Some(self.text.len());
        }
        let through = render(self.template, &self.messages[..=at], self.context).ok()?;
        self.text.starts_with(&through).then_some(through.len())
    }

    /// What changes in the text when a message says something else: from
    /// where to where.
    fn changed(&self, at: usize) -> Option<(usize, usize)> {
        let (mut start, mut behind) = (usize::MAX, usize::MAX);
        for words in WORDS {
            let mut messages = self.messages.to_vec();
            messages[at] = messages[at].clone().with("content", words);
            let other = render(self.template, &messages, self.context).ok()?;
            // It may have said these very words.
            if other != self.text {
                start = start.min(same_start(&other, self.text));
                behind = behind.min(same_end(&other, self.text));
            }
        }
        // If neither is seen, nor is the message.
        let end = self.text.len().checked_sub(behind)?;
        // Where words were put in, what is alike on both sides may overlap.
        Some((start, end.max(start)))
    }
}

/// Whether a text shows what the last message says. A template that leaves it
/// out cannot be asked where it ends.
fn shows_last(text: &str, messages: &[Message]) -> bool {
    match messages.last().and_then(|message| message.get("content")) {
        Some(OrderedJson::Text(content)) => text.contains(content.trim()),
        _ => true,
    }
}

fn same_start(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
}

fn same_end(one: &str, other: &str) -> usize {
    one.bytes().rev().zip(other.bytes().rev()).take_while(|(one, other)| one == other).count()
}
