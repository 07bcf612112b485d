//! Responses in OpenAI's format.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use weightloom_hub::text::Tokenizer;
use weightloom_nn::{FinishReason, TokenLogprobs};

use crate::choice::{Delta, TokenEntry};
use crate::generation_params::{StreamMode, random_u64};
use crate::request::{CompletionRequest, Endpoint};
use crate::response_state::Usage;
use crate::token_text;

/// Replaces negative infinity, which JSON cannot represent.
const MIN_LOGPROB: f64 = -9999.0;

/// Formats responses for an endpoint.
pub(crate) struct ResponseFormatter {
    endpoint: Endpoint,
    stream_mode: StreamMode,
    /// The number of most likely tokens to report at each position.
    top_logprobs: Option<usize>,
    id: String,
    created: u64,
    model: String,
    tokenizer: Tokenizer,
}

impl ResponseFormatter {
    pub(crate) fn new(request: &CompletionRequest, model: &str, tokenizer: &Tokenizer) -> Self {
        let prefix = match request.endpoint {
            Endpoint::Completion => "cmpl",
            Endpoint::Chat => "chatcmpl",
        };
        Self {
            endpoint: request.endpoint,
            stream_mode: request.params.stream_mode,
            top_logprobs: request.top_logprobs,
            id: format!("{prefix}-{:016x}{:08x}", random_u64(), random_u64() as u32),
            created: now(),
            model: model.to_owned(),
            tokenizer: tokenizer.clone(),
        }
    }

    /// The complete response.
    pub(crate) fn complete(&self, rows: &[Delta], usage: Usage) -> Value {
        let choice = |(index, row): (usize, &Delta)| {
            let mut choice = json!({
                "index": index,
                "logprobs": self.logprobs(&row.entries),
                "finish_reason": finish_reason(row.finish),
            });
            match self.endpoint {
                Endpoint::Completion => choice["text"] = json!(row.text),
                Endpoint::Chat => {
                    choice["message"] = json!({"role": "assistant", "content": row.text, "refusal": null});
                }
            }
            choice
        };
        let choices = rows.iter().enumerate().map(choice).collect();
        let object = match self.endpoint {
            Endpoint::Completion => "text_completion",
            Endpoint::Chat => "chat.completion",
        };
        let mut response = self.envelope(object, choices);
        response["usage"] = usage_json(usage);
        response
    }

    /// The first chunks of a stream, which name the role.
    pub(crate) fn first_chunks(&self, rows: usize) -> Vec<Value> {
        let choice = |index: usize| {
            let delta = json!({"role": "assistant", "content": "", "refusal": null});
            self.chunk(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null}))
        };
        match self.endpoint {
            Endpoint::Completion => Vec::new(),
            Endpoint::Chat => (0..rows).map(choice).collect(),
        }
    }

    /// A chunk with the new content of a row.
    pub(crate) fn delta_chunk(&self, index: usize, new: &Delta) -> Value {
        let logprobs = if new.entries.is_empty() { Value::Null } else { self.logprobs(&new.entries) };
        let mut choice =
            json!({"index": index, "logprobs": logprobs, "finish_reason": finish_reason(new.finish)});
        match self.endpoint {
            Endpoint::Completion => choice["text"] = json!(new.text),
            Endpoint::Chat if new.text.is_empty() && new.entries.is_empty() => choice["delta"] = json!({}),
            Endpoint::Chat => choice["delta"] = json!({"content": new.text}),
        }
        self.chunk(choice)
    }

    /// The last chunk of a stream, if it has token counts.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> Option<Value> {
        (self.stream_mode == StreamMode::WithUsage).then(|| {
            let mut chunk = self.envelope(self.chunk_object(), Vec::new());
            chunk["usage"] = usage_json(usage);
            chunk
        })
    }

    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.envelope(self.chunk_object(), vec![choice]);
        if self.stream_mode == StreamMode::WithUsage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Completion => "text_completion",
            Endpoint::Chat => "chat.completion.chunk",
        }
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn logprobs(&self, entries: &[TokenEntry]) -> Value {
        match (self.top_logprobs, self.endpoint) {
            (None, _) => Value::Null,
            (Some(_), Endpoint::Completion) => self.legacy_logprobs(entries),
            (Some(_), Endpoint::Chat) => {
                let content: Vec<Value> = entries.iter().map(|entry| self.chat_logprob(entry)).collect();
                json!({"content": content, "refusal": null})
            }
        }
    }

    fn legacy_logprobs(&self, entries: &[TokenEntry]) -> Value {
        let text = |token: u32| token_text::legacy(&self.tokenizer, token);
        let tokens: Vec<String> = entries.iter().map(|entry| text(entry.token)).collect();
        let chosen = |entry: &TokenEntry| entry.logprobs.as_ref().map(|logprobs| finite(logprobs.chosen));
        let top = |(entry, own): (&TokenEntry, &String)| {
            let logprobs = entry.logprobs.as_ref()?;
            let mut top = Map::new();
            // The most likely of several tokens with the same text counts.
            for &(token, value) in &logprobs.top {
                top.entry(text(token)).or_insert_with(|| json!(finite(value)));
            }
            top.entry(own.clone()).or_insert_with(|| json!(finite(logprobs.chosen)));
            Some(top)
        };
        json!({
            "token_logprobs": entries.iter().map(chosen).collect::<Vec<_>>(),
            "top_logprobs": entries.iter().zip(&tokens).map(top).collect::<Vec<_>>(),
            "text_offset": entries.iter().map(|entry| entry.offset).collect::<Vec<_>>(),
            "tokens": tokens,
        })
    }

    fn chat_logprob(&self, entry: &TokenEntry) -> Value {
        let one = |token: u32, value: f64| {
            let (text, bytes) = token_text::with_bytes(&self.tokenizer, token);
            json!({"token": text, "logprob": finite(value), "bytes": bytes})
        };
        let Some(TokenLogprobs { chosen, top }) = &entry.logprobs else {
            return one(entry.token, f64::NEG_INFINITY);
        };
        let mut entry = one(entry.token, *chosen);
        entry["top_logprobs"] = top.iter().map(|&(token, value)| one(token, value)).collect();
        entry
    }
}

/// An entry of the list of models.
pub(crate) fn model(name: &str, created: u64) -> Value {
    json!({"id": name, "object": "model", "created": created, "owned_by": "weightloom"})
}

/// The Unix time in seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn usage_json(usage: Usage) -> Value {
    let Usage { prompt, completion } = usage;
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

fn finish_reason(finish: Option<FinishReason>) -> Option<&'static str> {
    finish.map(|finish| match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    })
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { MIN_LOGPROB }
}
