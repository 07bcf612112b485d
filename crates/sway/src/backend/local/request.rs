//! Questions as token sequences to score or to continue.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use weightloom_hub::text::{
    ChatContext, ChatTemplate, GenerationPrompt, Message, RenderedAnswer, Special, SpecialText, Tokenizer,
};
use weightloom_nn::{DecoderConfig, PositionConfig};

use crate::answer::{Answer, Rolling};
use crate::error::QueryError;
use crate::prompt::{ChatMessage, Prompt};
use crate::question::{Query, Question};
use crate::view::View;

/// The computation that answers a question.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// No computation: the answer is known.
    Answered(Answer),
    Score(ScoreRequest),
    Generate(GenerateRequest),
}

/// A forward pass over a sequence.
#[derive(Clone, Debug)]
pub(super) struct ScoreRequest {
    pub(super) view: View,
    pub(super) tokens: Arc<[u32]>,
    pub(super) output: ScoreOutput,
    /// The start of the text, for messages.
    pub(super) text: String,
}

/// The result taken from a forward pass.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScoreOutput {
    /// The given number of most likely next tokens.
    NextTokens(usize),
    /// Divergence of the next-token distribution from another view's.
    Divergence(View),
    /// Log-probabilities of the tokens from this index on.
    Completion(usize),
    /// Log-probabilities of all tokens but the first.
    Rolling,
    /// The mean hidden state.
    Embedding,
}

/// A greedy continuation of a sequence.
#[derive(Clone, Debug)]
pub(super) struct GenerateRequest {
    pub(super) view: View,
    pub(super) tokens: Arc<[u32]>,
    pub(super) max_new_tokens: usize,
    pub(super) stop: StopAt,
    pub(super) text: String,
}

/// Where a continuation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopAt {
    EndOfText,
    /// Also where an answer in a chat ends.
    EndOfTurn,
}

impl Request {
    /// The views it computes with.
    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        let (view, from) = match self {
            Self::Answered(_) => (None, None),
            Self::Score(ScoreRequest { view, output: ScoreOutput::Divergence(from), .. }) => {
                (Some(view), Some(from))
            }
            Self::Score(ScoreRequest { view, .. }) | Self::Generate(GenerateRequest { view, .. }) => {
                (Some(view), None)
            }
        };
        view.into_iter().chain(from)
    }
}

fn failed(error: &dyn fmt::Display) -> QueryError {
    QueryError::Failed { message: error.to_string() }
}

fn to_messages(messages: &[ChatMessage]) -> Vec<Message> {
    messages.iter().map(|message| Message::new(message.role.name(), message.content.as_str())).collect()
}

/// The start of a text, for messages.
fn excerpt(text: &str) -> String {
    const MAX_CHARACTERS: usize = 60;
    match text.char_indices().nth(MAX_CHARACTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Tokenizes questions and checks that the decoders can process them.
pub(super) struct RequestBuilder<'a> {
    tokenizer: &'a Tokenizer,
    /// Renders messages; none if the model has no chat template.
    template: Option<&'a ChatTemplate>,
    /// Configs of all decoders in use.
    configs: Vec<&'a DecoderConfig>,
    /// Tokens by text: many views share a text.
    cache: RefCell<HashMap<(String, Special), Vec<u32>>>,
}

impl<'a> RequestBuilder<'a> {
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        template: Option<&'a ChatTemplate>,
        configs: Vec<&'a DecoderConfig>,
    ) -> Self {
        Self { tokenizer, template, configs, cache: RefCell::default() }
    }

    pub(super) fn build(&self, question: &Question) -> Result<Request, QueryError> {
        let view = question.view.clone();
        let score = |text: &str, tokens: Vec<u32>, output: ScoreOutput| {
            let (tokens, text) = (tokens.into(), excerpt(text));
            Request::Score(ScoreRequest { view: view.clone(), tokens, output, text })
        };
        Ok(match &question.query {
            Query::Next { prompt, top_k } => {
                score(&prompt.to_string(), self.prompt(prompt)?, ScoreOutput::NextTokens(*top_k))
            }
            Query::Divergence { prompt, from } => {
                score(&prompt.to_string(), self.prompt(prompt)?, ScoreOutput::Divergence(from.clone()))
            }
            Query::Completion { prompt, completion } => {
                let (both, start) = match prompt {
                    Prompt::Text(prompt) => {
                        let both = self.encode(&format!("{prompt}{completion}"), Special::Add)?;
                        (both, self.encode(prompt, Special::Add)?.len())
                    }
                    Prompt::Messages(messages) => self.answer(messages, completion)?,
                };
                let both = self.check(both)?;
                let prompt = prompt.to_string();
                if both.len() <= start || completion.is_empty() {
                    let (prompt, completion) = (excerpt(&prompt), excerpt(completion));
                    return Err(QueryError::NoTokens { prompt, completion });
                }
                if start == 0 {
                    // The first token has no context to be predicted from.
                    return Err(QueryError::EmptyText);
                }
                score(&prompt, both, ScoreOutput::Completion(start))
            }
            Query::Text { text } => {
                let tokens = self.tokens(text)?;
                if tokens.len() < 2 {
                    let rolling = Rolling { logprobs: Vec::new(), tokens: tokens.len(), total: 0.0 };
                    return Ok(Request::Answered(Answer::Rolling(rolling)));
                }
                score(text, tokens, ScoreOutput::Rolling)
            }
            Query::Embedding { text } => {
                // An empty generation has an embedding too.
                let mut tokens = self.encode(text, Special::Add)?;
                if tokens.is_empty() {
                    let tokenizer = self.tokenizer;
                    tokens.extend(tokenizer.bos().or_else(|| tokenizer.eos().first().copied()));
                }
                score(text, self.check(tokens)?, ScoreOutput::Embedding)
            }
            Query::Generate { prompt, max_new_tokens } => {
                let tokens = self.prompt(prompt)?;
                let max_new_tokens = *max_new_tokens;
                if max_new_tokens == 0 {
                    return Ok(Request::Answered(Answer::Text(String::new())));
                }
                let (tokens, text) = (tokens.into(), excerpt(&prompt.to_string()));
                let stop = match prompt {
                    Prompt::Text(_) => StopAt::EndOfText,
                    Prompt::Messages(_) => StopAt::EndOfTurn,
                };
                Request::Generate(GenerateRequest { view, tokens, max_new_tokens, stop, text })
            }
            Query::Filler { tokens } => Request::Answered(Answer::Text(self.filler(*tokens)?)),
        })
    }

    fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, QueryError> {
        let key = (text.to_owned(), special);
        if let Some(tokens) = self.cache.borrow().get(&key) {
            return Ok(tokens.clone());
        }
        let tokens = self.tokenizer.encode(text, special).map_err(|error| failed(&error))?;
        self.cache.borrow_mut().insert(key, tokens.clone());
        Ok(tokens)
    }

    fn tokens(&self, text: &str) -> Result<Vec<u32>, QueryError> {
        self.check(self.encode(text, Special::Add)?)
    }

    /// The tokens that a model continues.
    fn prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, QueryError> {
        match prompt {
            Prompt::Text(text) => self.tokens(text),
            Prompt::Messages(messages) => {
                let (template, messages) = (self.template()?, to_messages(messages));
                let rendered = template.render(&messages, GenerationPrompt::Add, &ChatContext::default());
                // Templates write the special tokens themselves.
                self.check(self.encode(&rendered.map_err(|error| failed(&error))?, Special::Plain)?)
            }
        }
    }

    /// The tokens of a chat with an answer at its end, and the index of the
    /// answer's first token.
    fn answer(&self, messages: &[ChatMessage], answer: &str) -> Result<(Vec<u32>, usize), QueryError> {
        let messages = to_messages(messages);
        let rendered = self.template()?.render_answer(&messages, answer, &ChatContext::default());
        let RenderedAnswer { text, start } = rendered.map_err(|error| failed(&error))?;
        let encoded = self.tokenizer.encode_with_offsets(&text, Special::Plain);
        let encoded = encoded.map_err(|error| failed(&error))?;
        // As in training, a token with a byte of the answer belongs to it.
        let first = encoded.offsets.iter().position(|range| range.end > start);
        let count = encoded.ids.len();
        Ok((encoded.ids, first.unwrap_or(count)))
    }

    fn template(&self) -> Result<&'a ChatTemplate, QueryError> {
        let message = || "cannot render messages: the model has no chat template".to_owned();
        self.template.ok_or_else(|| QueryError::Failed { message: message() })
    }

    /// Rejects tokens that a decoder cannot process, so that they do not fail
    /// the batch they would share with others.
    fn check(&self, tokens: Vec<u32>) -> Result<Vec<u32>, QueryError> {
        if tokens.is_empty() {
            return Err(QueryError::EmptyText);
        }
        for config in &self.configs {
            let (vocabulary, max_positions) = (config.vocabulary, config.max_positions);
            if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
                let message = format!(
                    "token {token} of the tokenizer is outside the model's vocabulary of {vocabulary}"
                );
                return Err(QueryError::Failed { message });
            }
            if config.positions == PositionConfig::Learned && tokens.len() > max_positions {
                let length = tokens.len();
                let message = format!("the text has {length} tokens, but the model accepts {max_positions}");
                return Err(QueryError::Failed { message });
            }
        }
        Ok(tokens)
    }

    /// A text of about `tokens` tokens: the padding token, or what replaces it,
    /// repeated.
    fn filler(&self, tokens: usize) -> Result<String, QueryError> {
        if tokens == 0 {
            return Ok(String::new());
        }
        let tokenizer = self.tokenizer;
        let padding =
            tokenizer.pad().or_else(|| tokenizer.eos().first().copied()).or_else(|| tokenizer.unknown());
        let word = padding.and_then(|token| tokenizer.token(token)).unwrap_or(" ");
        let text = word.repeat(2 * tokens + 4);
        let ids = self.encode(&text, Special::Add)?;
        if ids.len() <= tokens {
            return Ok(text);
        }
        Ok(tokenizer.decode(&ids[..tokens], SpecialText::Keep))
    }
}
