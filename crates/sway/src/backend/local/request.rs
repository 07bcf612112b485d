//! Questions as token sequences to score or to continue.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use weightloom_hub::text::{
    ChatContext, ChatTemplate, GenerationPrompt, Message, RenderedAnswer, Special, SpecialText, Tokenizer,
};
use weightloom_nn::{ModelDefinition, Sampling, SamplingError};

use crate::answer::{Answer, Rolling};
use crate::error::QueryError;
use crate::prompt::{ChatMessage, Prompt};
use crate::question::{Query, Question};
use crate::view::View;

/// The computation that answers a question.
#[derive(Clone, Debug)]
pub(in crate::backend) enum Request {
    /// No computation: the answer is known.
    Answered(Answer),
    Score(ScoreRequest),
    Generate(GenerateRequest),
}

/// A forward pass over a sequence.
#[derive(Clone, Debug)]
pub(in crate::backend) struct ScoreRequest {
    pub(in crate::backend) view: View,
    pub(in crate::backend) tokens: Arc<[u32]>,
    pub(in crate::backend) output: ScoreOutput,
    /// The start of the text, for messages.
    pub(in crate::backend) text: String,
}

/// The result taken from a forward pass.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::backend) enum ScoreOutput {
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
pub(in crate::backend) struct GenerateRequest {
    pub(in crate::backend) view: View,
    pub(in crate::backend) tokens: Arc<[u32]>,
    pub(in crate::backend) max_new_tokens: usize,
    pub(in crate::backend) stop: StopAt,
    /// How tokens are chosen.
    pub(in crate::backend) sampling: Sampling,
    pub(in crate::backend) text: String,
}

/// Where a continuation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend) enum StopAt {
    EndOfText,
    /// Also where an answer in a chat ends.
    EndOfTurn,
}

impl Request {
    /// The views it computes with.
    pub(in crate::backend) fn views(&self) -> impl Iterator<Item = &View> {
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

/// The sequences that a model can process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) struct SequenceLimits {
    /// Tokens are below this.
    pub(in crate::backend) vocabulary: usize,
    /// The longest sequence.
    pub(in crate::backend) max_positions: Option<usize>,
}

impl SequenceLimits {
    /// The limits of a model.
    pub(in crate::backend) fn of(definition: &dyn ModelDefinition) -> Self {
        Self { vocabulary: definition.vocabulary(), max_positions: definition.max_positions() }
    }
}

/// Tokenizes questions and checks that the models can process them.
pub(in crate::backend) struct RequestBuilder<'a> {
    tokenizer: &'a Tokenizer,
    /// Renders messages; none if the model has no chat template.
    template: Option<&'a ChatTemplate>,
    /// Limits of all models in use.
    limits: Vec<SequenceLimits>,
    /// Tokens by text: many views share a text.
    cache: RefCell<HashMap<(String, Special), Vec<u32>>>,
}

impl<'a> RequestBuilder<'a> {
    pub(in crate::backend) fn new(
        tokenizer: &'a Tokenizer,
        template: Option<&'a ChatTemplate>,
        limits: Vec<SequenceLimits>,
    ) -> Self {
        Self { tokenizer, template, limits, cache: RefCell::default() }
    }

    pub(in crate::backend) fn build(&self, question: &Question) -> Result<Request, QueryError> {
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
        prompt: &Prompt,
        max_new_tokens: usize,
        sampling: Sampling,
    ) -> Result<Request, QueryError> {
        let tokens = self.prompt(prompt)?;
        if max_new_tokens == 0 {
            return Ok(Request::Answered(Answer::Text(String::new())));
        }
        let (tokens, text) = (tokens.into(), excerpt(&prompt.to_string()));
        let stop = match prompt {
            Prompt::Text(_) => StopAt::EndOfText,
            Prompt::Messages(_) => StopAt::EndOfTurn,
        };
        Ok(Request::Generate(GenerateRequest { view, tokens, max_new_tokens, stop, sampling, text }))
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

    /// Rejects tokens that a model cannot process, so that they do not fail
    /// the batch they would share with others.
    fn check(&self, tokens: Vec<u32>) -> Result<Vec<u32>, QueryError> {
        if tokens.is_empty() {
            return Err(QueryError::EmptyText);
        }
        for &SequenceLimits { vocabulary, max_positions } in &self.limits {
            if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
                let message = format!(
                    "token {token} of the tokenizer is outside the model's vocabulary of {vocabulary}"
                );
                return Err(QueryError::Failed { message });
            }
            if let Some(max_positions) = max_positions.filter(|most| tokens.len() > *most) {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use serde_json::{Map, Value, json};
    use weightloom_hub::text::{ChatTemplates, TextError};

    use super::*;
    use crate::prompt::Role;

    /// Writes the special tokens itself, as published templates do.
    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}\
                            {% if add_generation_prompt %}assistant:{% endif %}";

    /// One token for each ASCII character; BOS is put before every text.
    fn files(name: &str) -> Result<Option<Vec<u8>>, TextError> {
        let marks = ["<s>", "</s>"];
        let pieces = marks.map(str::to_owned).into_iter().chain((' '..='~').map(String::from));
        let vocabulary: Map<String, Value> = pieces.zip(0..).map(|(piece, id)| (piece, json!(id))).collect();
        let added = |(id, mark): (usize, &str)| {
            json!({"id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let file = match name {
            "tokenizer.json" => json!({
                "version": "1.0",
                "added_tokens": marks.into_iter().enumerate().map(added).collect::<Vec<_>>(),
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
                },
                "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            }),
            "tokenizer_config.json" => {
                json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE})
            }
            _ => return Ok(None),
        };
        Ok(Some(file.to_string().into_bytes()))
    }

    fn chat() -> Vec<ChatMessage> {
        vec![ChatMessage::new(Role::System, "Be kind."), ChatMessage::new(Role::User, "Hi")]
    }

    #[test]
    fn chats_have_exactly_the_tokens_of_the_template() {
        let (tokenizer, templates) =
            (Tokenizer::from_files(&files).unwrap(), ChatTemplates::from_files(&files).unwrap());
        let template = templates.pick(&ChatContext::default()).unwrap();
        let builder = RequestBuilder::new(&tokenizer, Some(template), Vec::new());
        let rendered =
            template.render(&to_messages(&chat()), GenerationPrompt::Add, &ChatContext::default()).unwrap();
        let expected = tokenizer.encode(&rendered, Special::Plain).unwrap();
        let prompt = Prompt::Messages(chat());
        let ask = |query| builder.build(&Question::new(&View::Base, query)).unwrap();
        let tokens = |request: &Request| match request {
            Request::Score(request) => request.tokens.to_vec(),
            Request::Generate(request) => request.tokens.to_vec(),
            Request::Answered(answer) => panic!("{answer:?}"),
        };
        let next = ask(Query::Next { prompt: prompt.clone(), top_k: 1 });
        let written = ask(Query::Generate { prompt: prompt.clone(), max_new_tokens: 1 });
        assert_eq!((tokens(&next), tokens(&written)), (expected.clone(), expected.clone()));
        assert!(matches!(written, Request::Generate(GenerateRequest { stop: StopAt::EndOfTurn, .. })));
        // One BOS, although the tokenizer adds one to plain text.
        assert_eq!(expected.iter().filter(|token| **token == 0).count(), 1);
        let plain = ask(Query::Next { prompt: rendered.into(), top_k: 1 });
        assert_eq!(tokens(&plain)[..2], [0, 0]);

        let scored = ask(Query::Completion { prompt, completion: "Hello".to_owned() });
        let Request::Score(ScoreRequest { output: ScoreOutput::Completion(start), .. }) = &scored else {
            panic!("{scored:?}")
        };
        let whole = tokens(&scored);
        assert_eq!((*start, &whole[..*start]), (expected.len(), &expected[..]));
        // The answer is a whole turn.
        assert_eq!(whole[*start..], tokenizer.encode("Hello</s>", Special::Plain).unwrap());
    }
}
