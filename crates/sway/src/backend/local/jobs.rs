//! From questions to work: which tokens are read by whom, and what for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use weightloom_hub::text::{Special, SpecialText, TextError, Tokenizer};
use weightloom_nn::{DecoderConfig, PositionConfig};

use crate::answer::{Answer, CompletionScore, Rolling};
use crate::error::QueryError;
use crate::question::{Query, Question};
use crate::view::View;

/// What is done for a question.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Nothing more: this is the answer.
    Done(Answer),
    /// A text is read.
    Read(Read),
    /// A text is written on.
    Write(Write),
}

/// A text that is read.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) view: View,
    pub(super) tokens: Arc<[u32]>,
    pub(super) need: Need,
    /// The beginning of the text, for messages.
    pub(super) text: String,
}

/// What is wanted of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Need {
    /// So many likeliest next tokens.
    Next(usize),
    /// How far the next token is from another view's.
    Divergence(View),
    /// The tokens from this one on.
    Completion(usize),
    /// All tokens.
    Text,
    /// Its mean hidden state.
    Embedding,
}

/// A text that is written on.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) view: View,
    pub(super) tokens: Arc<[u32]>,
    pub(super) max_new_tokens: usize,
    pub(super) text: String,
}

impl Job {
    /// The views that it asks.
    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        let (view, from) = match self {
            Self::Done(_) => (None, None),
            Self::Read(Read { view, need: Need::Divergence(from), .. }) => (Some(view), Some(from)),
            Self::Read(Read { view, .. }) | Self::Write(Write { view, .. }) => (Some(view), None),
        };
        view.into_iter().chain(from)
    }
}

/// The beginning of a text, for messages.
pub(super) fn beginning(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Makes jobs of questions.
pub(super) struct Clerk<'a> {
    tokenizer: &'a Tokenizer,
    /// Of all decoders that read.
    configs: Vec<&'a DecoderConfig>,
    /// Texts that were tokenized before: many views read the same.
    known: RefCell<HashMap<String, Vec<u32>>>,
}

impl<'a> Clerk<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, configs: Vec<&'a DecoderConfig>) -> Self {
        Self { tokenizer, configs, known: RefCell::default() }
    }

    pub(super) fn job(&self, question: &Question) -> Result<Job, QueryError> {
        let view = question.view.clone();
        let read = |text: &str, tokens: Vec<u32>, need: Need| {
            Job::Read(Read { view: view.clone(), tokens: tokens.into(), need, text: beginning(text) })
        };
        Ok(match &question.query {
            Query::Next { prompt, top_k } => read(prompt, self.tokens(prompt)?, Need::Next(*top_k)),
            Query::Divergence { prompt, from } => {
                read(prompt, self.tokens(prompt)?, Need::Divergence(from.clone()))
            }
            Query::Completion { prompt, completion } => {
                let start = self.encoded(prompt)?.len();
                let both = self.checked(self.encoded(&format!("{prompt}{completion}"))?)?;
                if both.len() <= start {
                    let (prompt, completion) = (beginning(prompt), beginning(completion));
                    return Err(QueryError::NoTokens { prompt, completion });
                }
                if start == 0 {
                    // The first token follows nothing.
                    return Err(QueryError::EmptyText);
                }
                read(prompt, both, Need::Completion(start))
            }
            Query::Text { text } => {
                let tokens = self.tokens(text)?;
                if tokens.len() < 2 {
                    let rolling = Rolling { logprobs: Vec::new(), tokens: tokens.len(), total: 0.0 };
                    return Ok(Job::Done(Answer::Rolling(rolling)));
                }
                read(text, tokens, Need::Text)
            }
            Query::Embedding { text } => {
                // A model may have nothing to say, and that means something too.
                let mut tokens = self.encoded(text)?;
                if tokens.is_empty() {
                    let own = self.tokenizer;
                    tokens.extend(own.bos().or_else(|| own.eos().first().copied()));
                }
                read(text, self.checked(tokens)?, Need::Embedding)
            }
            Query::Generate { prompt, max_new_tokens } => {
                let tokens = self.tokens(prompt)?;
                if *max_new_tokens == 0 {
                    return Ok(Job::Done(Answer::Text(String::new())));
                }
                let (tokens, text) = (tokens.into(), beginning(prompt));
                Job::Write(Write { view, tokens, max_new_tokens: *max_new_tokens, text })
            }
            Query::Filler { tokens } => Job::Done(Answer::Text(self.filler(*tokens)?)),
        })
    }

    fn encoded(&self, text: &str) -> Result<Vec<u32>, QueryError> {
        if let Some(tokens) = self.known.borrow().get(text) {
            return Ok(tokens.clone());
        }
        let refused = |error: TextError| QueryError::Failed { message: error.to_string() };
        let tokens = self.tokenizer.encode(text, Special::Add).map_err(refused)?;
        self.known.borrow_mut().insert(text.to_owned(), tokens.clone());
        Ok(tokens)
    }

    fn tokens(&self, text: &str) -> Result<Vec<u32>, QueryError> {
        self.checked(self.encoded(text)?)
    }

    /// Refuses what the decoder cannot read, before others share a pass with it.
    fn checked(&self, tokens: Vec<u32>) -> Result<Vec<u32>, QueryError> {
        if tokens.is_empty() {
            return Err(QueryError::EmptyText);
        }
        for config in &self.configs {
            let (vocabulary, most) = (config.vocabulary, config.max_positions);
            if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
                let message = format!("the tokenizer makes token {token}, but the model knows {vocabulary}");
                return Err(QueryError::Failed { message });
            }
            if config.positions == PositionConfig::Learned && tokens.len() > most {
                let message = format!("the text has {} tokens, but the model reads {most}", tokens.len());
                return Err(QueryError::Failed { message });
            }
        }
        Ok(tokens)
    }

    /// A text of so many tokens that says nothing: the token that fills up
    /// short texts, or what stands in for it, again and again.
    fn filler(&self, tokens: usize) -> Result<String, QueryError> {
        if tokens == 0 {
            return Ok(String::new());
        }
        let own = self.tokenizer;
        let padding = own.pad().or_else(|| own.eos().first().copied()).or_else(|| own.unknown());
        let word = padding.and_then(|token| own.token(token)).unwrap_or(" ");
        let text = word.repeat(2 * tokens + 4);
        let ids = self.encoded(&text)?;
        if ids.len() <= tokens {
            return Ok(text);
        }
        Ok(own.decode(&ids[..tokens], SpecialText::Keep))
    }
}

/// The answer made of the logarithms of the probabilities of tokens, or what
/// among them is no number.
pub(super) fn scored(need: &Need, tokens: usize, logprobs: &[f32]) -> Result<Answer, f32> {
    if let Some(&odd) = logprobs.iter().find(|logprob| !logprob.is_finite()) {
        return Err(odd);
    }
    let total = logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
    Ok(match need {
        Need::Completion(_) => Answer::Completion(CompletionScore { total, tokens: logprobs.len() }),
        _ => Answer::Rolling(Rolling { logprobs: logprobs.to_vec(), tokens, total }),
    })
}
