//! Questions as token sequences to score or to continue.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use weightloom_hub::text::{Special, SpecialText, TextError, Tokenizer};
use weightloom_nn::{DecoderConfig, PositionConfig, Sampling, SamplingError};

use crate::answer::{Answer, Rolling};
use crate::error::QueryError;
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

/// A continuation of a sequence.
#[derive(Clone, Debug)]
pub(super) struct GenerateRequest {
    pub(super) view: View,
    pub(super) tokens: Arc<[u32]>,
    pub(super) max_new_tokens: usize,
    /// How tokens are chosen.
    pub(super) sampling: Sampling,
    pub(super) text: String,
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
    /// Configs of all decoders in use.
    configs: Vec<&'a DecoderConfig>,
    /// Tokens by text: many views share a text.
    cache: RefCell<HashMap<String, Vec<u32>>>,
}

impl<'a> RequestBuilder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, configs: Vec<&'a DecoderConfig>) -> Self {
        Self { tokenizer, configs, cache: RefCell::default() }
    }

    pub(super) fn build(&self, question: &Question) -> Result<Request, QueryError> {
        let view = question.view.clone();
        let score = |text: &str, tokens: Vec<u32>, output: ScoreOutput| {
            let (tokens, text) = (tokens.into(), excerpt(text));
            Request::Score(ScoreRequest { view: view.clone(), tokens, output, text })
        };
        Ok(match &question.query {
            Query::Next { prompt, top_k } => {
                score(prompt, self.tokens(prompt)?, ScoreOutput::NextTokens(*top_k))
            }
            Query::Divergence { prompt, from } => {
                score(prompt, self.tokens(prompt)?, ScoreOutput::Divergence(from.clone()))
            }
            Query::Completion { prompt, completion } => {
                let start = self.encode(prompt)?.len();
                let both = self.check(self.encode(&format!("{prompt}{completion}"))?)?;
                if both.len() <= start {
                    let (prompt, completion) = (excerpt(prompt), excerpt(completion));
                    return Err(QueryError::NoTokens { prompt, completion });
                }
                if start == 0 {
                    // The first token has no context to be predicted from.
                    return Err(QueryError::EmptyText);
                }
                score(prompt, both, ScoreOutput::Completion(start))
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
                let mut tokens = self.encode(text)?;
                if tokens.is_empty() {
                    let tokenizer = self.tokenizer;
                    tokens.extend(tokenizer.bos().or_else(|| tokenizer.eos().first().copied()));
                }
                score(text, self.check(tokens)?, ScoreOutput::Embedding)
            }
            Query::Generate { prompt, max_new_tokens } => {
                self.generation(view, prompt, *max_new_tokens, Sampling::default())?
            }
            Query::Sample { prompt, max_new_tokens, temperature, top_p, seed } => {
                let sampling = Sampling {
                    temperature: temperature.0,
                    top_p: Some(top_p.0),
                    seed: *seed,
                    ..Sampling::default()
                };
                let failed = |error: SamplingError| QueryError::Failed { message: error.to_string() };
                sampling.check().map_err(failed)?;
                self.generation(view, prompt, *max_new_tokens, sampling)?
            }
            Query::Filler { tokens } => Request::Answered(Answer::Text(self.filler(*tokens)?)),
        })
    }

    fn generation(
        &self,
        view: View,
        prompt: &str,
        max_new_tokens: usize,
        sampling: Sampling,
    ) -> Result<Request, QueryError> {
        let tokens = self.tokens(prompt)?;
        if max_new_tokens == 0 {
            return Ok(Request::Answered(Answer::Text(String::new())));
        }
        let (tokens, text) = (tokens.into(), excerpt(prompt));
        Ok(Request::Generate(GenerateRequest { view, tokens, max_new_tokens, sampling, text }))
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, QueryError> {
        if let Some(tokens) = self.cache.borrow().get(text) {
            return Ok(tokens.clone());
        }
        let failed = |error: TextError| QueryError::Failed { message: error.to_string() };
        let tokens = self.tokenizer.encode(text, Special::Add).map_err(failed)?;
        self.cache.borrow_mut().insert(text.to_owned(), tokens.clone());
        Ok(tokens)
    }

    fn tokens(&self, text: &str) -> Result<Vec<u32>, QueryError> {
        self.check(self.encode(text)?)
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
        let ids = self.encode(&text)?;
        if ids.len() <= tokens {
            return Ok(text);
        }
        Ok(tokenizer.decode(&ids[..tokens], SpecialText::Keep))
    }
}
