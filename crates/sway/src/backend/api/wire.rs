//! Questions as `/v1/completions` takes them, and its answers.

use serde_json::{Map, Value, json};

use super::echo;
use crate::answer::{Answer, CompletionScore, Distribution, Rolling, TokenNames};
use crate::error::QueryError;
use crate::question::Query;

/// The most next tokens that servers tell.
pub const MOST_TOLD: usize = 20;

/// The least probability that is told as one.
const LEAST_MASS: f64 = 1e-12;

/// How much of a text is shown.
const MOST_SHOWN: usize = 60;

/// Which keys a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// Those of OpenAI's server.
    Common,
    /// And those that switch off what other servers do without being told:
    /// some make words less likely that were there before.
    All,
}

/// Whether servers can answer this.
pub(super) fn able(ask: &Query) -> bool {
    matches!(ask, Query::Next { .. } | Query::Completion { .. } | Query::Text { .. } | Query::Generate { .. })
}

/// Whether a text is to come back.
pub(super) fn echoes(ask: &Query) -> bool {
    matches!(ask, Query::Completion { .. } | Query::Text { .. })
}

/// What is asked, in words.
pub(super) fn name(ask: &Query) -> &'static str {
    match ask {
        Query::Next { .. } => "which tokens come next",
        Query::Divergence { .. } => "distances over the whole vocabulary",
        Query::Completion { .. } => "how likely a completion is",
        Query::Text { .. } => "how likely a text is",
        Query::Generate { .. } => "a text",
        Query::Embedding { .. } => "vectors of texts",
        Query::Filler { .. } => "fillers",
    }
}

/// Why a question need not be asked.
pub(super) fn refused(ask: &Query) -> Option<QueryError> {
    match ask {
        Query::Completion { prompt, completion } if completion.is_empty() => {
            Some(QueryError::NoTokens { prompt: shown(prompt), completion: String::new() })
        }
        Query::Text { text } if text.is_empty() => Some(QueryError::EmptyText),
        _ => None,
    }
}

/// The body of a request.
///
/// One token is written behind a text that comes back: some servers refuse to
/// write none, and some take 0 for no limit.
pub(super) fn body(model: &str, ask: &Query, keys: Keys) -> Value {
    let echo = |text: String| {
        json!({"model": model, "prompt": text, "max_tokens": 1, "echo": true, "logprobs": 1,
               "temperature": 0})
    };
    match ask {
        Query::Next { prompt, top_k } => json!({
            "model": model, "prompt": prompt, "max_tokens": 1, "echo": false,
            "logprobs": top_k.clamp(&1, &MOST_TOLD), "temperature": 0,
        }),
        Query::Completion { prompt, completion } => echo(format!("{prompt}{completion}")),
        Query::Text { text } => echo(text.clone()),
        Query::Generate { prompt, max_new_tokens } => {
            let mut body = json!({
                "model": model, "prompt": prompt, "max_tokens": max_new_tokens, "temperature": 0, "top_p": 1,
                "seed": 0,
            });
            if keys == Keys::All {
                // llama.cpp's children call it so, and vLLM.
                body["repeat_penalty"] = json!(1);
                body["repetition_penalty"] = json!(1);
            }
            body
        }
        Query::Divergence { .. } | Query::Embedding { .. } | Query::Filler { .. } => Value::Null,
    }
}

/// The answer in what a server said.
pub(super) fn read(whole: &Value, ask: &Query, view: &str) -> Result<Answer, QueryError> {
    let choice = whole.get("choices").and_then(|choices| choices.get(0)).ok_or_else(|| unlike("choices"))?;
    let reading = Reading { choice, view };
    match ask {
        Query::Next { prompt, top_k } => Ok(Answer::Distribution(reading.distribution(prompt, *top_k)?)),
        Query::Completion { prompt, completion } => {
            let whole = format!("{prompt}{completion}");
            let tokens = reading.echo(&whole)?;
            let behind = prompt.chars().count();
            let scored: Vec<f64> = tokens
                .iter()
                .filter(|token| token.start >= behind)
                .filter_map(|token| token.logprob)
                .collect();
            if scored.is_empty() {
                return Err(QueryError::NoTokens { prompt: shown(prompt), completion: shown(completion) });
            }
            let score = CompletionScore { total: scored.iter().sum(), tokens: scored.len() };
            Ok(Answer::Completion(score))
        }
        Query::Text { text } => {
            let tokens = reading.echo(text)?;
            let scored: Vec<f64> = tokens.iter().skip(1).filter_map(|token| token.logprob).collect();
            let rolling = Rolling {
                logprobs: scored.iter().map(|logprob| *logprob as f32).collect(),
                tokens: tokens.len(),
                total: scored.iter().sum(),
            };
            Ok(Answer::Rolling(rolling))
        }
        Query::Generate { .. } => {
            let text = choice.get("text").and_then(Value::as_str).ok_or_else(|| unlike("choices[0].text"))?;
            Ok(Answer::Text(text.to_owned()))
        }
        Query::Divergence { .. } | Query::Embedding { .. } | Query::Filler { .. } => {
            Err(QueryError::WrongKind { expected: name(ask).to_owned() })
        }
    }
}

/// One token of an echo.
struct Token {
    /// Where it begins, in code points.
    start: usize,
    /// None for the first, which nothing comes before.
    logprob: Option<f64>,
}

struct Reading<'a> {
    choice: &'a Value,
    view: &'a str,
}

impl Reading<'_> {
    fn logprobs(&self) -> Result<&Map<String, Value>, QueryError> {
        let found = self.choice.get("logprobs").and_then(Value::as_object);
        found.ok_or_else(|| QueryError::Failed {
            message: "the server tells no probabilities: `logprobs` of `/v1/completions` came back empty"
                .to_owned(),
        })
    }

    fn number(&self, value: &Value, behind: &str) -> Result<f64, QueryError> {
        let number = value.as_f64().ok_or_else(|| unlike("logprobs"))?;
        if number.is_finite() {
            return Ok(number);
        }
        Err(QueryError::NotFinite {
            view: self.view.to_owned(),
            found: number.to_string(),
            text: shown(behind),
        })
    }

    fn distribution(&self, prompt: &str, top: usize) -> Result<Distribution, QueryError> {
        let logprobs = self.logprobs()?;
        let told = match logprobs.get("content") {
            // As chats have it: so do servers that are built around them.
            Some(content) => listed(content)?,
            None => mapped(logprobs.get("top_logprobs")),
        };
        if told.is_empty() {
            return Err(QueryError::Failed {
                message: "the server tells no likeliest tokens: `top_logprobs` came back empty".to_owned(),
            });
        }
        let mut all: Vec<(String, f64)> = Vec::with_capacity(told.len());
        for (token, value) in told {
            all.push((token, self.number(value, prompt)?));
        }
        all.sort_by(|left, right| right.1.total_cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
        all.truncate(top.max(1));
        let left = 1.0 - all.iter().map(|(_, logprob)| logprob.exp()).sum::<f64>();
        let tail = if left > LEAST_MASS { left.ln() } else { 0.0 };
        let (tokens, logprobs) = all.into_iter().map(|(token, logprob)| (token, logprob as f32)).unzip();
        Ok(Distribution { tokens: TokenNames::Strings(tokens), logprobs, vocabulary: None, tail: Some(tail) })
    }

    /// The tokens of a text that comes back.
    fn echo(&self, text: &str) -> Result<Vec<Token>, QueryError> {
        let logprobs = self.logprobs()?;
        let list = |key: &str| logprobs.get(key).and_then(Value::as_array);
        let (Some(tokens), Some(values)) = (list("tokens"), list("token_logprobs")) else {
            return Err(unlike("logprobs"));
        };
        let tokens: Option<Vec<&str>> = tokens.iter().map(Value::as_str).collect();
        let tokens = tokens.ok_or_else(|| unlike("logprobs.tokens"))?;
        if tokens.is_empty() || tokens.len() != values.len() {
            return Err(unlike("logprobs.token_logprobs"));
        }
        let starts = echo::place(&tokens, logprobs.get("text_offset"), text);
        // Without an echo, what was written comes back alone.
        let echoed =
            self.choice.get("text").and_then(Value::as_str).is_none_or(|said| said.starts_with(text));
        if !echoed || starts.is_empty() {
            return Err(QueryError::Failed {
                message: "the server does not give texts back: `echo` of `/v1/completions` has no effect"
                    .to_owned(),
            });
        }
        let mut found: Vec<Token> = Vec::with_capacity(starts.len());
        for (start, value) in starts.into_iter().zip(values) {
            let logprob = match value {
                Value::Null => None,
                value => Some(self.number(value, text)?),
            };
            if logprob.is_none() && found.iter().any(|token| token.logprob.is_some()) {
                let message = format!("the server tells no probability of token {}", found.len());
                return Err(QueryError::Failed { message });
            }
            found.push(Token { start, logprob });
        }
        Ok(found)
    }
}

/// The likeliest first tokens, as completions have them: logarithms by name.
fn mapped(top: Option<&Value>) -> Vec<(String, &Value)> {
    let first = top.and_then(|list| list.get(0)).and_then(Value::as_object);
    first.into_iter().flatten().map(|(token, value)| (token.clone(), value)).collect()
}

/// The same, as chats have them: a list, in which a token that is a part of a
/// character is told by its bytes.
fn listed(content: &Value) -> Result<Vec<(String, &Value)>, QueryError> {
    let first = content.get(0).and_then(|first| first.get("top_logprobs")).and_then(Value::as_array);
    let entry = |entry: &'_ Value| {
        let token = entry.get("token").and_then(Value::as_str).ok_or_else(|| unlike("logprobs.content"))?;
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
        // The likeliest comes first, and stands for all of its name.
        if found.iter().all(|(known, _)| *known != name) {
            found.push((name, value));
        }
    }
    Ok(found)
}

fn unlike(place: &str) -> QueryError {
    QueryError::Failed { message: format!("the server's answer is unlike OpenAI's: see `{place}`") }
}

/// The beginning of a text.
fn shown(text: &str) -> String {
    text.chars().take(MOST_SHOWN).collect()
}
