//! What is asked of the model, once a request is read and checked.

use weightloom_hub::Writer;

use crate::manner::Manner;
use crate::options::ServeOptions;
use crate::refusal::Refusal;
use axum::http::StatusCode;

/// What is asked of the model.
pub(crate) struct Ask {
    pub(crate) form: Form,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) max_new_tokens: usize,
    pub(crate) manner: Manner,
    /// How many of the likeliest tokens are told besides each.
    pub(crate) likeliest: Option<usize>,
}

/// In which form a request came and is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Completion,
    Chat,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// If the answer begins with it.
    pub(crate) echo: Option<Echo>,
}

/// A prompt as the answer repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    pub(crate) text: String,
    /// Where each token begins, in characters.
    pub(crate) offsets: Vec<usize>,
}

impl Form {
    /// The field that holds the prompt.
    pub(crate) fn prompt_field(self) -> &'static str {
        match self {
            Self::Completion => "prompt",
            Self::Chat => "messages",
        }
    }
}

impl Ask {
    /// The prompt of a row.
    pub(crate) fn prompt_of(&self, row: usize) -> &Prompt {
        &self.prompts[row / self.manner.copies]
    }

    /// Rows that are answered: each prompt as often as it was asked for.
    pub(crate) fn rows(&self) -> usize {
        self.prompts.len() * self.manner.copies
    }

    /// Whether tokens of prompts are told with their probabilities.
    pub(crate) fn scored(&self) -> Option<usize> {
        self.likeliest.filter(|_| self.prompts.iter().any(|prompt| prompt.echo.is_some()))
    }
}

/// What fits into the model, and what may be asked of it.
pub(crate) struct Limits {
    positions: usize,
    vocabulary: usize,
    prompt_tokens: usize,
    new_tokens: usize,
    batch: usize,
}

/// How many tokens are wanted.
pub(crate) struct Wanted {
    /// The field that says so.
    pub(crate) field: &'static str,
    pub(crate) asked: Option<usize>,
    /// The most if it is not said.
    pub(crate) unasked: usize,
}

impl Limits {
    pub(crate) fn new(writer: &Writer, options: &ServeOptions) -> Self {
        let config = writer.decoder.config();
        Self {
            positions: config.max_positions,
            vocabulary: config.vocabulary,
            prompt_tokens: options.max_prompt_tokens.unwrap_or(usize::MAX),
            new_tokens: options.max_new_tokens.unwrap_or(usize::MAX),
            batch: options.max_batch,
        }
    }

    pub(crate) fn check_batch(&self, prompts: usize, copies: usize) -> Result<(), Refusal> {
        let fits = prompts.checked_mul(copies).is_some_and(|rows| rows <= self.batch);
        let told = || format!("{prompts} prompts with n={copies} are more than {} answers", self.batch);
        if fits { Ok(()) } else { Err(Refusal::field(if copies > 1 { "n" } else { "prompt" }, told())) }
    }

    pub(crate) fn check_prompt(&self, tokens: &[u32], place: &str) -> Result<(), Refusal> {
        if tokens.is_empty() {
            return Err(Refusal::field(place, format!("`{place}` has no tokens")));
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.vocabulary) {
            let known = self.vocabulary;
            let message = format!("`{place}` has token {token}, but the model knows those below {known}");
            return Err(Refusal::field(place, message));
        }
        let (count, most) = (tokens.len(), self.prompt_tokens);
        if count > most && count <= self.positions {
            let message = format!("`{place}` has {count} tokens, more than the {most} that are accepted");
            return Err(Refusal::named(StatusCode::BAD_REQUEST, "prompt_too_long", Some(place), message));
        }
        Ok(())
    }

    /// How many tokens are written at most after prompts, of which the longest
    /// is this long.
    pub(crate) fn new_tokens(&self, longest: usize, wanted: &Wanted) -> Result<usize, Refusal> {
        let Wanted { field, asked, unasked } = *wanted;
        let room = self.positions.saturating_sub(longest);
        let count = asked.unwrap_or_else(|| unasked.min(room).min(self.new_tokens).max(1));
        if count > room || longest > self.positions {
            let (positions, sum) = (self.positions, longest.saturating_add(count));
            let message = format!(
                "the model's maximum context length is {positions} tokens, but {sum} are needed: \
                 {longest} of the prompt and {count} to write"
            );
            let code = "context_length_exceeded";
            return Err(Refusal::named(StatusCode::BAD_REQUEST, code, Some(field), message));
        }
        if count > self.new_tokens {
            let most = self.new_tokens;
            let message = format!("`{field}` is {count}, but at most {most} tokens are written");
            return Err(Refusal::field(field, message));
        }
        Ok(count)
    }
}
