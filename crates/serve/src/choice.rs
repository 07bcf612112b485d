//! One answer as it grows.

use std::collections::VecDeque;
use std::sync::Arc;

use weightloom_hub::Piece;
use weightloom_hub::text::{SpecialText, Streamer, Tokenizer};
use weightloom_nn::{Finish, Likeliest};

use crate::ask::Prompt;

/// One answer as it grows. A stream sends what it gives; an answer as a whole
/// is all of that together, so the two cannot differ.
pub(crate) struct Choice {
    /// Tokens that end texts.
    ends: Arc<[u32]>,
    /// Decodes what was written, if places of tokens are told.
    streamer: Option<Streamer>,
    /// Characters that tokens have made, and those of them that were given.
    /// The rest may become a text to stop at.
    reached: usize,
    given: usize,
    /// Tokens whose text was not given yet.
    waiting: VecDeque<Entry>,
    /// Tokens that were written.
    pub(crate) tokens: usize,
}

/// What is new in an answer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Increment {
    pub(crate) text: String,
    pub(crate) entries: Vec<Entry>,
    pub(crate) finish: Option<Finish>,
}

/// One token that is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) token: u32,
    /// The first of a prompt has no probability.
    pub(crate) likeliest: Option<Likeliest>,
    /// Where it begins in the answer, in characters.
    pub(crate) offset: usize,
}

/// Whether tokens are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entries {
    Told,
    Untold,
}

impl Choice {
    pub(crate) fn new(tokenizer: &Tokenizer, prompt: &[u32], ends: Arc<[u32]>, entries: Entries) -> Self {
        let streamer = || tokenizer.streamer_behind(prompt, SpecialText::Skip);
        let streamer = (entries == Entries::Told).then(streamer);
        Self { ends, streamer, reached: 0, given: 0, waiting: VecDeque::new(), tokens: 0 }
    }

    /// Begins with the prompt.
    pub(crate) fn echo(&mut self, prompt: &Prompt, scores: &[Likeliest]) -> Increment {
        let Some(echo) = &prompt.echo else { return Increment::default() };
        let count = echo.text.chars().count();
        (self.reached, self.given) = (count, count);
        let mut entries = Vec::new();
        if self.streamer.is_some() {
            let scores = std::iter::once(None).chain(scores.iter().cloned().map(Some));
            let tokens = prompt.tokens.iter().zip(&echo.offsets).zip(scores);
            let entry = |((&token, &offset), likeliest)| Entry { token, likeliest, offset };
            entries.extend(tokens.map(entry));
        }
        Increment { text: echo.text.clone(), entries, finish: None }
    }

    /// Goes on with what was written.
    pub(crate) fn push(&mut self, piece: Piece) -> Increment {
        let Piece { token, likeliest, text, finish, .. } = piece;
        self.tokens += 1;
        let ended = self.ends.contains(&token);
        if let Some(streamer) = self.streamer.as_mut().filter(|_| !ended) {
            self.waiting.push_back(Entry { token, likeliest, offset: self.reached });
            self.reached += streamer.push(token).map_or(0, |text| text.chars().count());
        }
        self.given += text.chars().count();
        let mut entries = Vec::new();
        while let Some(entry) = self.waiting.pop_front_if(|entry| entry.offset < self.given) {
            entries.push(entry);
        }
        match finish {
            // It ends before a text, whose tokens are no part of it.
            Some(Finish::Stop) if !ended => self.waiting.clear(),
            Some(_) => entries.extend(self.waiting.drain(..)),
            None => {}
        }
        Increment { text, entries, finish }
    }
}

impl Increment {
    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.entries.is_empty() && self.finish.is_none()
    }

    /// Both, one behind the other.
    pub(crate) fn append(&mut self, next: Self) {
        self.text += &next.text;
        self.entries.extend(next.entries);
        self.finish = next.finish.or(self.finish);
    }
}
