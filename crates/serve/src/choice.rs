//! One completion of a response.

use std::collections::VecDeque;
use std::sync::Arc;

use weightloom_hub::StreamedToken;
use weightloom_hub::text::{SpecialText, Streamer, Tokenizer};
use weightloom_nn::{FinishReason, TokenLogprobs};

use crate::request::Prompt;

/// A completion in progress. A stream sends its deltas and a complete response
/// concatenates them, so the two cannot differ.
pub(crate) struct Choice {
    /// Tokens that end the completion and are not reported.
    eos: Arc<[u32]>,
    /// Decodes tokens to find their offsets, if they are reported.
    streamer: Option<Streamer>,
    /// Characters of all tokens so far.
    decoded: usize,
    /// Characters sent so far; the others may be the start of a stop string.
    sent: usize,
    /// Tokens whose text was not sent yet.
    waiting: VecDeque<TokenEntry>,
    /// The number of generated tokens.
    pub(crate) tokens: usize,
}

/// New content of a completion.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) text: String,
    pub(crate) entries: Vec<TokenEntry>,
    pub(crate) finish: Option<FinishReason>,
}

/// A reported token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenEntry {
    pub(crate) token: u32,
    /// `None` for the first token of a prompt.
    pub(crate) logprobs: Option<TokenLogprobs>,
    /// Its offset in the completion in characters.
    pub(crate) offset: usize,
}

/// Whether tokens are reported with their log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logprobs {
    Include,
    Omit,
}

impl Choice {
    pub(crate) fn new(tokenizer: &Tokenizer, prompt: &[u32], eos: Arc<[u32]>, logprobs: Logprobs) -> Self {
        let streamer = || tokenizer.streamer_after(prompt, SpecialText::Skip);
        let streamer = (logprobs == Logprobs::Include).then(streamer);
        Self { eos, streamer, decoded: 0, sent: 0, waiting: VecDeque::new(), tokens: 0 }
    }

    /// Starts with the prompt, if it is echoed.
    pub(crate) fn echo(&mut self, prompt: &Prompt, scores: &[TokenLogprobs]) -> Delta {
        let Some(echo) = &prompt.echo else { return Delta::default() };
        let count = echo.text.chars().count();
        (self.decoded, self.sent) = (count, count);
        let mut entries = Vec::new();
        if self.streamer.is_some() {
            let scores = std::iter::once(None).chain(scores.iter().cloned().map(Some));
            let tokens = prompt.tokens.iter().zip(&echo.offsets).zip(scores);
            let entry = |((&token, &offset), logprobs)| TokenEntry { token, logprobs, offset };
            entries.extend(tokens.map(entry));
        }
        Delta { text: echo.text.clone(), entries, finish: None }
    }

    /// Appends a generated token.
    pub(crate) fn push(&mut self, token: StreamedToken) -> Delta {
        let StreamedToken { id, logprobs, text, finish, .. } = token;
        self.tokens += 1;
        let is_eos = self.eos.contains(&id);
        if let Some(streamer) = self.streamer.as_mut().filter(|_| !is_eos) {
            self.waiting.push_back(TokenEntry { token: id, logprobs, offset: self.decoded });
            self.decoded += streamer.push(id).map_or(0, |text| text.chars().count());
        }
        self.sent += text.chars().count();
        let mut entries = Vec::new();
        while let Some(entry) = self.waiting.pop_front_if(|entry| entry.offset < self.sent) {
            entries.push(entry);
        }
        match finish {
            // The waiting tokens belong to a stop string.
            Some(FinishReason::Stop) if !is_eos => self.waiting.clear(),
            Some(_) => entries.extend(self.waiting.drain(..)),
            None => {}
        }
        Delta { text, entries, finish }
    }
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.entries.is_empty() && self.finish.is_none()
    }

    pub(crate) fn append(&mut self, next: Self) {
        self.text += &next.text;
        self.entries.extend(next.entries);
        self.finish = next.finish.or(self.finish);
    }
}
