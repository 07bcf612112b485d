//! Requests to `/v1/completions` and `/v1/chat/completions`, and their responses.

use serde_json::{Map, Value, json};

use super::echo;
use crate::answer::{Answer, CompletionScore, Distribution, Rolling, TokenNames};
use crate::error::QueryError;
use crate::prompt::Prompt;
use crate::question::Query;

/// Limit of servers for `logprobs`.
pub const MAX_LOGPROBS: usize = 20;

/// Smaller remaining probabilities count as zero.
const MIN_TAIL: f64 = 1e-12;

/// Limit for texts in errors.
const MAX_EXCERPT: usize = 60;

/// The keys of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKeys {
    /// Those that OpenAI defines.
    OpenAi,
    /// And those that switch off defaults of other servers, such as a
    /// repetition penalty.
    Extended,
}

/// The endpoint that answers a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Completions,
    ChatCompletions,
}

/// The endpoint that answers a query: that for chats if it has messages.
pub(super) fn endpoint(query: &Query) -> Endpoint {
    match query {
        Query::Next { prompt: Prompt::Messages(_), .. }
        | Query::Generate { prompt: Prompt::Messages(_), .. } => Endpoint::ChatCompletions,
        _ => Endpoint::Completions,
    }
}

/// Whether servers can answer a query. Endpoints for chats return the
/// log-probabilities of generated tokens only, so that given answers cannot be
/// scored.
pub(super) fn is_supported(query: &Query) -> bool {
    matches!(
        query,
        Query::Next { .. }
            | Query::Completion { prompt: Prompt::Text(_), .. }
            | Query::Text { .. }
            | Query::Generate { .. }
            | Query::Sample { .. }
    )
}

/// Whether a query scores a given text.
pub(super) fn needs_echo(query: &Query) -> bool {
    matches!(query, Query::Completion { .. } | Query::Text { .. })
}

/// Name of a query in messages.
pub(super) fn name(query: &Query) -> &'static str {
    match query {
        Query::Next { .. } => "next tokens",
        Query::Divergence { .. } => "divergences over the whole vocabulary",
        Query::Completion { prompt: Prompt::Messages(_), .. } => {
            "the score of an answer in a chat: the chat endpoint returns log-probabilities of generated text only"
        }
        Query::Completion { .. } => "the score of a completion",
        Query::Text { .. } => "the score of a text",
        Query::Generate { .. } | Query::Sample { .. } => "generated text",
        Query::Embedding { .. } => "embeddings",
        Query::Filler { .. } => "filler tokens",
    }
}

/// The error of a query that needs no request.
pub(super) fn reject(query: &Query) -> Option<QueryError> {
    match query {
        Query::Completion { prompt, completion } if completion.is_empty() => {
            Some(QueryError::NoTokens { prompt: excerpt(&prompt.to_string()), completion: String::new() })
        }
        Query::Text { text } if text.is_empty() => Some(QueryError::EmptyText),
        _ => None,
    }
}

/// The body of a request.
///
/// A query with `echo` generates one token: some servers reject 0, and others
/// take it for no limit.
pub(super) fn body(model: &str, query: &Query, keys: RequestKeys) -> Value {
    let echo = |text: String| {
        json!({"model": model, "prompt": text, "max_tokens": 1, "echo": true, "logprobs": 1,
               "temperature": 0})
    };
    match query {
        Query::Next { prompt: Prompt::Messages(messages), top_k } => json!({
            "model": model, "messages": messages, "max_tokens": 1, "logprobs": true,
            "top_logprobs": top_k.clamp(&1, &MAX_LOGPROBS), "temperature": 0,
        }),
        Query::Next { prompt, top_k } => json!({
            "model": model, "prompt": prompt, "max_tokens": 1, "echo": false,
            "logprobs": top_k.clamp(&1, &MAX_LOGPROBS), "temperature": 0,
        }),
        Query::Completion { prompt, completion } => echo(format!("{prompt}{completion}")),
        Query::Text { text } => echo(text.clone()),
        Query::Generate { prompt, max_new_tokens } | Query::Sample { prompt, max_new_tokens, .. } => {
            let mut body = json!({
                "model": model, "max_tokens": max_new_tokens, "temperature": 0, "top_p": 1, "seed": 0,
            });
            let key = match prompt {
                Prompt::Text(_) => "prompt",
                Prompt::Messages(_) => "messages",
            };
            body[key] = json!(prompt);
            if let Query::Sample { temperature, top_p, seed, .. } = query {
                body["temperature"] = json!(temperature.0);
                body["top_p"] = json!(top_p.0);
                body["seed"] = json!(seed);
            }
            if keys == RequestKeys::Extended {
                // The names in llama.cpp and in vLLM.
                body["repeat_penalty"] = json!(1);
                body["repetition_penalty"] = json!(1);
            }
            body
        }
        Query::Divergence { .. } | Query::Embedding { .. } | Query::Filler { .. } => Value::Null,
    }
}

/// Reads the answer to a query from a response.
pub(super) fn read(response: &Value, query: &Query, view: &str) -> Result<Answer, QueryError> {
    let choice =
        response.get("choices").and_then(|choices| choices.get(0)).ok_or_else(|| unexpected("choices"))?;
    let choice_reader = ChoiceReader { choice, view };
    match query {
        Query::Next { prompt, top_k } => {
            Ok(Answer::Distribution(choice_reader.distribution(&prompt.to_string(), *top_k)?))
        }
        Query::Completion { prompt, completion } => {
            let prompt = prompt.to_string();
            let whole = format!("{prompt}{completion}");
            let tokens = choice_reader.echo(&whole)?;
            let prompt_end = prompt.chars().count();
            let scored: Vec<f64> = tokens
                .iter()
                .filter(|token| token.start >= prompt_end)
                .filter_map(|token| token.logprob)
                .collect();
            if scored.is_empty() {
                return Err(QueryError::NoTokens {
                    prompt: excerpt(&prompt),
                    completion: excerpt(completion),
                });
            }
            let score = CompletionScore { total: scored.iter().sum(), tokens: scored.len() };
            Ok(Answer::Completion(score))
        }
        Query::Text { text } => {
            let tokens = choice_reader.echo(text)?;
            let scored: Vec<f64> = tokens.iter().skip(1).filter_map(|token| token.logprob).collect();
            let rolling = Rolling {
                logprobs: scored.iter().map(|logprob| *logprob as f32).collect(),
                tokens: tokens.len(),
                total: scored.iter().sum(),
            };
            Ok(Answer::Rolling(rolling))
        }
        Query::Generate { prompt: Prompt::Messages(_), .. }
        | Query::Sample { prompt: Prompt::Messages(_), .. } => {
            let content = choice.get("message").and_then(|message| message.get("content"));
            match content {
                Some(Value::String(text)) => Ok(Answer::Text(text.clone())),
                // A model that ends its turn at once.
                Some(Value::Null) => Ok(Answer::Text(String::new())),
                _ => Err(unexpected("choices[0].message.content")),
            }
        }
        Query::Generate { .. } | Query::Sample { .. } => {
            let text =
                choice.get("text").and_then(Value::as_str).ok_or_else(|| unexpected("choices[0].text"))?;
            Ok(Answer::Text(text.to_owned()))
        }
        Query::Divergence { .. } | Query::Embedding { .. } | Query::Filler { .. } => {
            Err(QueryError::WrongKind { expected: name(query).to_owned() })
        }
    }
}

/// One token of an echoed text.
struct EchoedToken {
    /// Position in code points.
    start: usize,
    /// `None` for the first token, which has no context.
    logprob: Option<f64>,
}

struct ChoiceReader<'a> {
    choice: &'a Value,
    view: &'a str,
}

impl ChoiceReader<'_> {
    fn logprobs(&self) -> Result<&Map<String, Value>, QueryError> {
        let found = self.choice.get("logprobs").and_then(Value::as_object);
        found.ok_or_else(|| QueryError::Failed {
            message: "the server returns no log-probabilities: `logprobs` of `/v1/completions` is empty"
                .to_owned(),
        })
    }

    fn number(&self, value: &Value, context: &str) -> Result<f64, QueryError> {
        let number = value.as_f64().ok_or_else(|| unexpected("logprobs"))?;
        if number.is_finite() {
            return Ok(number);
        }
        Err(QueryError::NotFinite {
            view: self.view.to_owned(),
            found: number.to_string(),
            text: excerpt(context),
        })
    }

    fn distribution(&self, prompt: &str, top_k: usize) -> Result<Distribution, QueryError> {
        let logprobs = self.logprobs()?;
        let top = match logprobs.get("content") {
            // The format of chat completions, which some servers use here too.
            Some(content) => chat_logprobs(content)?,
            None => completion_logprobs(logprobs.get("top_logprobs")),
        };
        if top.is_empty() {
            return Err(QueryError::Failed {
                message: "the server returns no top tokens: `top_logprobs` is empty".to_owned(),
            });
        }
        let mut all: Vec<(String, f64)> = Vec::with_capacity(top.len());
        for (token, value) in top {
            all.push((token, self.number(value, prompt)?));
        }
        all.sort_by(|left, right| right.1.total_cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
        all.truncate(top_k.max(1));
        let left = 1.0 - all.iter().map(|(_, logprob)| logprob.exp()).sum::<f64>();
        let tail = if left > MIN_TAIL { left.ln() } else { 0.0 };
        let (tokens, logprobs) = all.into_iter().map(|(token, logprob)| (token, logprob as f32)).unzip();
        Ok(Distribution { tokens: TokenNames::Strings(tokens), logprobs, vocabulary: None, tail: Some(tail) })
    }

    /// The tokens of an echoed text.
    fn echo(&self, text: &str) -> Result<Vec<EchoedToken>, QueryError> {
        let logprobs = self.logprobs()?;
        let list = |key: &str| logprobs.get(key).and_then(Value::as_array);
        let (Some(tokens), Some(values)) = (list("tokens"), list("token_logprobs")) else {
            return Err(unexpected("logprobs"));
        };
        let tokens: Option<Vec<&str>> = tokens.iter().map(Value::as_str).collect();
        let tokens = tokens.ok_or_else(|| unexpected("logprobs.tokens"))?;
        if tokens.is_empty() || tokens.len() != values.len() {
            return Err(unexpected("logprobs.token_logprobs"));
        }
        let starts = echo::token_starts(&tokens, logprobs.get("text_offset"), text);
        // Without `echo`, only the generated text comes back.
        let echoed =
            self.choice.get("text").and_then(Value::as_str).is_none_or(|returned| returned.starts_with(text));
        if !echoed || starts.is_empty() {
            return Err(QueryError::Failed {
                message: "the server does not return given texts: it ignores `echo` of `/v1/completions`"
                    .to_owned(),
            });
        }
        let mut found: Vec<EchoedToken> = Vec::with_capacity(starts.len());
        for (start, value) in starts.into_iter().zip(values) {
            let logprob = match value {
                Value::Null => None,
                value => Some(self.number(value, text)?),
            };
            if logprob.is_none() && found.iter().any(|token| token.logprob.is_some()) {
                let message = format!("the server returns no log-probability of token {}", found.len());
                return Err(QueryError::Failed { message });
            }
            found.push(EchoedToken { start, logprob });
        }
        Ok(found)
    }
}

/// Top tokens in the format of completions: log-probabilities by name.
fn completion_logprobs(top: Option<&Value>) -> Vec<(String, &Value)> {
    let first = top.and_then(|list| list.get(0)).and_then(Value::as_object);
    first.into_iter().flatten().map(|(token, value)| (token.clone(), value)).collect()
}

/// Top tokens in the format of chat completions: a list, in which bytes name a
/// token that is a part of a character.
fn chat_logprobs(content: &Value) -> Result<Vec<(String, &Value)>, QueryError> {
    let first = content.get(0).and_then(|first| first.get("top_logprobs")).and_then(Value::as_array);
    let entry = |entry: &'_ Value| {
        let token =
            entry.get("token").and_then(Value::as_str).ok_or_else(|| unexpected("logprobs.content"))?;
        let bytes: Option<Vec<u8>> = entry.get("bytes").and_then(Value::as_array).and_then(|bytes| {
            bytes.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect()
        });
        Ok(match bytes {
            Some(bytes) if std::str::from_utf8(&bytes).is_err() => {
                bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}"))
            }
            _ => token.to_owned(),
        })
    };
    let mut found: Vec<(String, &Value)> = Vec::new();
    for one in first.into_iter().flatten() {
        let (name, value) = (entry(one)?, one.get("logprob").unwrap_or(&Value::Null));
        // The most likely of each name comes first.
        if found.iter().all(|(known, _)| *known != name) {
            found.push((name, value));
        }
    }
    Ok(found)
}

fn unexpected(path: &str) -> QueryError {
    QueryError::Failed { message: format!("the response does not follow OpenAI's format: see `{path}`") }
}

/// The start of a text.
fn excerpt(text: &str) -> String {
    text.chars().take(MAX_EXCERPT).collect()
}
