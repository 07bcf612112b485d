//! A model that writes texts: a decoder with its tokenizer, its chat templates
//! and its manners.

use std::ops::ControlFlow;

use weightloom_nn::{Adapter, Decoder, Finish, Generation, Likeliest, Request, Sampling};

use crate::error::HubError;
use crate::text::{
    ChatContext, ChatTemplates, GenerationDefaults, GenerationPrompt, Message, Special, SpecialText,
    Streamer, TextError, Tokenizer,
};

/// A model that writes texts.
pub struct Writer {
    /// The decoder.
    pub decoder: Decoder,
    /// A change to it, and how much of it.
    pub adapter: Option<(Adapter, f64)>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat templates.
    pub templates: ChatTemplates,
    /// How it wants to be sampled.
    pub defaults: GenerationDefaults,
}

/// What is to be written.
#[derive(Clone, Debug, Default)]
pub struct WriteRequest {
    /// Prompts as tokens.
    pub prompts: Vec<Vec<u32>>,
    /// The most tokens to add to each.
    pub max_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Texts before which a row ends.
    pub stop: Vec<String>,
    /// Whether tokens that end texts end a row.
    pub ends: Ends,
    /// How many of the likeliest tokens are told besides each.
    pub likeliest: Option<usize>,
}

/// Whether tokens that end texts end a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// They do.
    #[default]
    Heeded,
    /// They are tokens like others.
    Ignored,
}

/// One step of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The row.
    pub row: usize,
    /// The token.
    pub token: u32,
    /// Its probability and that of others, if asked for.
    pub likeliest: Option<Likeliest>,
    /// Text that is certain by now. Characters of several tokens come with the
    /// last of them, and what may become a text to stop at is held back.
    pub text: String,
    /// Whether the row ends here.
    pub finish: Option<Finish>,
}

/// A row as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The continuation alone.
    pub text: String,
    /// Its tokens, without one that ended it.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

impl Writer {
    /// The tokens of a prompt, with those that the model expects around it. An
    /// empty one becomes the token that begins texts.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>, HubError> {
        let mut tokens = self.tokenizer.encode(text, Special::Add)?;
        if tokens.is_empty() {
            let first = self.tokenizer.bos().or_else(|| self.tokenizer.eos().first().copied());
            tokens.extend(first);
        }
        Ok(tokens)
    }

    /// The tokens of a conversation, ready for the model's answer.
    pub fn chat(&self, messages: &[Message], context: &ChatContext) -> Result<Vec<u32>, HubError> {
        let template = self.templates.pick(context).ok_or(HubError::NoChatTemplate)?;
        let text = template.render(messages, GenerationPrompt::Add, context)?;
        // Templates write the special tokens that a model expects.
        Ok(self.tokenizer.encode(&text, Special::Plain)?)
    }

    /// Tokens that end texts.
    pub fn end_tokens(&self) -> Vec<u32> {
        let mut ends = self.defaults.eos.clone();
        ends.extend(self.tokenizer.eos());
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    fn change(&self) -> Option<(&Adapter, f64)> {
        self.adapter.as_ref().map(|(adapter, strength)| (adapter, *strength))
    }

    /// Writes on. Each piece is told as it comes; whoever is told may end the
    /// work. Every rank that shares the model makes the same call.
    pub fn write(
        &self,
        request: &WriteRequest,
        mut tell: impl FnMut(&Piece) -> ControlFlow<()>,
    ) -> Result<Vec<Written>, HubError> {
        let stop = match request.ends {
            Ends::Heeded => self.end_tokens(),
            Ends::Ignored => Vec::new(),
        };
        let mut rows: Vec<Row> =
            request.prompts.iter().map(|prompt| Row::new(self, prompt, request)).collect();
        let mut generation = Generation::new(
            &self.decoder,
            self.change(),
            Request {
                prompts: request.prompts.clone(),
                max_new_tokens: request.max_new_tokens,
                stop: stop.clone(),
                sampling: request.sampling.clone(),
                likeliest: request.likeliest,
            },
        )?;
        while !generation.is_done() {
            for token in generation.step()? {
                let row = &mut rows[token.row];
                let ends = stop.contains(&token.id);
                let mut text = if ends { String::new() } else { row.push(token.id) };
                let mut finish = token.finish;
                if row.stopped {
                    generation.finish(token.row);
                    finish = Some(Finish::Stop);
                }
                if finish.is_some() {
                    text += &row.finish();
                    row.finish = finish;
                }
                row.text += &text;
                let piece =
                    Piece { row: token.row, token: token.id, likeliest: token.likeliest, text, finish };
                if tell(&piece).is_break() {
                    return Ok(rows.into_iter().map(Row::written).collect());
                }
            }
        }
        Ok(rows.into_iter().map(Row::written).collect())
    }

    /// For each token of each row but the first, how likely it was, and which
    /// `count` tokens were likeliest.
    pub fn score(&self, rows: &[&[u32]], count: usize) -> Result<Vec<Vec<Likeliest>>, HubError> {
        Ok(self.decoder.score(rows, count, self.change())?)
    }
}

/// A row that is being written.
struct Row {
    streamer: Option<Streamer>,
    stops: Vec<String>,
    /// Text that may become one to stop at.
    held: String,
    stopped: bool,
    tokens: Vec<u32>,
    text: String,
    finish: Option<Finish>,
}

impl Row {
    fn new(writer: &Writer, prompt: &[u32], request: &WriteRequest) -> Self {
        let stops = request.stop.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self {
            streamer: Some(writer.tokenizer.streamer_behind(prompt, SpecialText::Skip)),
            stops,
            held: String::new(),
            stopped: false,
            tokens: Vec::new(),
            text: String::new(),
            finish: None,
        }
    }

    /// The text that a token makes certain.
    fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        if let Some(text) = self.streamer.as_mut().and_then(|streamer| streamer.push(token)) {
            self.held += &text;
        }
        self.release()
    }

    /// What of the held text cannot become one to stop at.
    fn release(&mut self) -> String {
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.stopped = true;
            let text = self.held[..at].to_owned();
            self.held.clear();
            self.streamer = None;
            return text;
        }
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let at = self.held.char_indices().map(|(at, _)| at).find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        std::mem::replace(&mut self.held, rest)
    }

    /// The rest of the text.
    fn finish(&mut self) -> String {
        if let Some(text) = self.streamer.take().and_then(Streamer::finish) {
            self.held += &text;
        }
        let mut text = self.release();
        text += &std::mem::take(&mut self.held);
        text
    }

    fn written(self) -> Written {
        Written { text: self.text, tokens: self.tokens, finish: self.finish.unwrap_or(Finish::Stop) }
    }
}

/// How a model wants to be sampled, if it is to be drawn from at all.
pub fn sampling_of(defaults: &GenerationDefaults, seed: u64) -> Sampling {
    Sampling {
        temperature: defaults.temperature.unwrap_or(1.0),
        top_k: defaults.top_k.and_then(|count| usize::try_from(count).ok()).filter(|&count| count > 0),
        top_p: defaults.top_p,
        min_p: defaults.min_p,
        repetition_penalty: defaults.repetition_penalty.unwrap_or(1.0),
        seed,
    }
}

impl From<TextError> for HubError {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}
