//! Text generation: a model with its tokenizer, chat templates and defaults.

use std::ops::ControlFlow;

use weightloom_nn::{
    Adapter, AdapterSpec, FinishReason, GenerateRequest, Generation, Model, Sampling, TokenLogprobs,
};

use crate::error::HubError;
use crate::text::{
    ChatContext, ChatTemplates, GenerationDefaults, GenerationPrompt, Message, Special, SpecialText,
    Streamer, TextError, Tokenizer,
};

/// A model that generates text.
pub struct TextGenerator {
    /// The model.
    pub model: Box<dyn Model>,
    /// An adapter with its strength.
    pub adapter: Option<(Adapter, f64)>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat templates.
    pub templates: ChatTemplates,
    /// The model's own sampling parameters and end-of-text tokens.
    pub defaults: GenerationDefaults,
}

/// When to end a row, besides its maximum length and the request's stop tokens.
#[derive(Clone, Debug, Default)]
pub struct StopCriteria {
    /// Strings before which a row ends.
    pub strings: Vec<String>,
    /// Whether end-of-text tokens end a row.
    pub eos: EosHandling,
}

/// Whether end-of-text tokens end a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EosHandling {
    /// They do.
    #[default]
    Stop,
    /// They are tokens like any other.
    Ignore,
}

/// A generated token with its text.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamedToken {
    /// The row it belongs to.
    pub row: usize,
    /// The token.
    pub id: u32,
    /// Its log-probabilities, if requested.
    pub logprobs: Option<TokenLogprobs>,
    /// Text that is final by now. A character of several tokens comes with the
    /// last of them, and a possible start of a stop string is held back.
    pub text: String,
    /// Set if the row ends with this token.
    pub finish: Option<FinishReason>,
}

/// A finished row.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedText {
    /// The text without the prompt.
    pub text: String,
    /// The tokens without a final end-of-text token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
}

impl TextGenerator {
    /// Encodes a prompt with the special tokens that the model expects. An empty
    /// prompt becomes the beginning-of-text token.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, HubError> {
        let mut tokens = self.tokenizer.encode(text, Special::Add)?;
        if tokens.is_empty() {
            let first = self.tokenizer.bos().or_else(|| self.tokenizer.eos().first().copied());
            tokens.extend(first);
        }
        Ok(tokens)
    }

    /// Renders and encodes a conversation, ready for the assistant's turn.
    pub fn encode_chat(&self, messages: &[Message], context: &ChatContext) -> Result<Vec<u32>, HubError> {
        self.encode_rendered(&self.render_chat(messages, context)?)
    }

    /// Renders a conversation, ready for the assistant's turn.
    pub fn render_chat(&self, messages: &[Message], context: &ChatContext) -> Result<String, HubError> {
        let template = self.templates.pick(context).ok_or(HubError::NoChatTemplate)?;
        Ok(template.render(messages, GenerationPrompt::Add, context)?)
    }

    /// Encodes a rendered conversation.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, HubError> {
        // Templates include the special tokens.
        Ok(self.tokenizer.encode(text, Special::Plain)?)
    }

    /// The end-of-text tokens of the model and its tokenizer.
    pub fn eos_tokens(&self) -> Vec<u32> {
        let mut tokens = self.defaults.eos.clone();
        tokens.extend(self.tokenizer.eos());
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    fn adapter_spec(&self) -> Option<AdapterSpec<'_>> {
        self.adapter.as_ref().map(|(adapter, strength)| (adapter, *strength))
    }

    /// Generates text, and calls `on_token` with each token, which may break.
    /// Every rank that shares the model makes the same call.
    pub fn generate(
        &self,
        request: &GenerateRequest,
        stop: &StopCriteria,
        on_token: impl FnMut(&StreamedToken) -> ControlFlow<()>,
    ) -> Result<Vec<GeneratedText>, HubError> {
        self.generate_checked(request, stop, || ControlFlow::Continue(()), on_token)
    }

    /// The same with a call of `check` before each chunk of the prompts, which may
    /// break: nothing is generated then.
    pub fn generate_checked(
        &self,
        request: &GenerateRequest,
        stop: &StopCriteria,
        check: impl FnMut() -> ControlFlow<()>,
        mut on_token: impl FnMut(&StreamedToken) -> ControlFlow<()>,
    ) -> Result<Vec<GeneratedText>, HubError> {
        let mut request = request.clone();
        if stop.eos == EosHandling::Stop {
            request.stop_tokens.extend(self.eos_tokens());
        }
        let stop_tokens = request.stop_tokens.clone();
        let mut rows: Vec<Row> =
            request.prompts.iter().map(|prompt| Row::new(&self.tokenizer, prompt, stop)).collect();
        let mut generation = Generation::new(&*self.model, self.adapter_spec(), request)?;
        if generation.prefill(check)?.is_break() {
            return Ok(rows.into_iter().map(Row::into_text).collect());
        }
        while !generation.is_done() {
            for token in generation.step()? {
                let row = &mut rows[token.row];
                let is_stop = stop_tokens.contains(&token.id);
                let mut text = if is_stop { String::new() } else { row.push(token.id) };
                let mut finish = token.finish;
                if row.stopped {
                    generation.finish(token.row);
                    finish = Some(FinishReason::Stop);
                }
                if finish.is_some() {
                    text += &row.flush();
                    row.finish = finish;
                }
                row.text += &text;
                let token =
                    StreamedToken { row: token.row, id: token.id, logprobs: token.logprobs, text, finish };
                if on_token(&token).is_break() {
                    return Ok(rows.into_iter().map(Row::into_text).collect());
                }
            }
        }
        Ok(rows.into_iter().map(Row::into_text).collect())
    }

    /// Scores every token but the first of each row, with the `top` most likely
    /// tokens at its position.
    pub fn score(&self, rows: &[&[u32]], top: usize) -> Result<Vec<Vec<TokenLogprobs>>, HubError> {
        Ok(self.model.score(rows, top, self.adapter_spec())?)
    }

    /// The same with a call of `check` before each chunk of the rows, which may
    /// break: the result is then `None`.
    pub fn score_checked(
        &self,
        rows: &[&[u32]],
        top: usize,
        mut check: impl FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Vec<Vec<TokenLogprobs>>>, HubError> {
        Ok(self.model.score_checked(rows, top, self.adapter_spec(), &mut check)?)
    }
}

/// A row in progress.
struct Row {
    streamer: Option<Streamer>,
    stop_strings: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
    stopped: bool,
    tokens: Vec<u32>,
    text: String,
    finish: Option<FinishReason>,
}

impl Row {
    fn new(tokenizer: &Tokenizer, prompt: &[u32], stop: &StopCriteria) -> Self {
        let stop_strings = stop.strings.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self {
            streamer: Some(tokenizer.streamer_after(prompt, SpecialText::Skip)),
            stop_strings,
            held: String::new(),
            stopped: false,
            tokens: Vec::new(),
            text: String::new(),
            finish: None,
        }
    }

    /// Adds a token and returns the text that becomes final.
    fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        if let Some(text) = self.streamer.as_mut().and_then(|streamer| streamer.push(token)) {
            self.held += &text;
        }
        self.release()
    }

    /// The held text up to a stop string or a possible start of one.
    fn release(&mut self) -> String {
        let found = self.stop_strings.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.stopped = true;
            let text = self.held[..at].to_owned();
            self.held.clear();
            self.streamer = None;
            return text;
        }
        let may_stop = |at: &usize| self.stop_strings.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let at = self.held.char_indices().map(|(at, _)| at).find(may_stop).unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the row and returns the rest of its text.
    fn flush(&mut self) -> String {
        if let Some(text) = self.streamer.take().and_then(Streamer::finish) {
            self.held += &text;
        }
        let mut text = self.release();
        text += &std::mem::take(&mut self.held);
        text
    }

    fn into_text(self) -> GeneratedText {
        GeneratedText {
            text: self.text,
            tokens: self.tokens,
            finish: self.finish.unwrap_or(FinishReason::Stop),
        }
    }
}

/// The model's own sampling parameters.
pub fn default_sampling(defaults: &GenerationDefaults, seed: u64) -> Sampling {
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
