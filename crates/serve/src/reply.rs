//! Answers as OpenAI's clients read them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use weightloom_hub::text::Tokenizer;
use weightloom_nn::{Finish, Likeliest};

use crate::answer::Usage;
use crate::ask::{Ask, Form};
use crate::choice::{Entry, Increment};
use crate::manner::{Delivery, chance};
use crate::spelling;

/// What stands for the logarithm of 0, which JSON cannot write.
const IMPOSSIBLE: f64 = -9999.0;

/// Writes answers in their form.
pub(crate) struct Reply {
    form: Form,
    delivery: Delivery,
    /// How many of the likeliest tokens are told, if any.
    likeliest: Option<usize>,
    id: String,
    created: u64,
    model: String,
    tokenizer: Tokenizer,
}

impl Reply {
    pub(crate) fn new(ask: &Ask, model: &str, tokenizer: &Tokenizer) -> Self {
        let prefix = match ask.form {
            Form::Completion => "cmpl",
            Form::Chat => "chatcmpl",
        };
        Self {
            form: ask.form,
            delivery: ask.manner.delivery,
            likeliest: ask.likeliest,
            id: format!("{prefix}-{:016x}{:08x}", chance(), chance() as u32),
            created: now(),
            model: model.to_owned(),
            tokenizer: tokenizer.clone(),
        }
    }

    /// All answers at once.
    pub(crate) fn whole(&self, rows: &[Increment], usage: Usage) -> Value {
        let choice = |(index, row): (usize, &Increment)| {
            let mut choice = json!({
                "index": index,
                "logprobs": self.logprobs(&row.entries),
                "finish_reason": reason(row.finish),
            });
            match self.form {
                Form::Completion => choice["text"] = json!(row.text),
                Form::Chat => {
                    choice["message"] = json!({"role": "assistant", "content": row.text, "refusal": null});
                }
            }
            choice
        };
        let choices = rows.iter().enumerate().map(choice).collect();
        let object = match self.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion",
        };
        let mut whole = self.envelope(object, choices);
        whole["usage"] = told(usage);
        whole
    }

    /// What comes before anything is written: who speaks.
    pub(crate) fn opening(&self, rows: usize) -> Vec<Value> {
        let choice = |index: usize| {
            let delta = json!({"role": "assistant", "content": "", "refusal": null});
            self.chunk(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null}))
        };
        match self.form {
            Form::Completion => Vec::new(),
            Form::Chat => (0..rows).map(choice).collect(),
        }
    }

    /// What is new in a row.
    pub(crate) fn increment(&self, index: usize, new: &Increment) -> Value {
        let logprobs = if new.entries.is_empty() { Value::Null } else { self.logprobs(&new.entries) };
        let mut choice = json!({"index": index, "logprobs": logprobs, "finish_reason": reason(new.finish)});
        match self.form {
            Form::Completion => choice["text"] = json!(new.text),
            Form::Chat if new.text.is_empty() && new.entries.is_empty() => choice["delta"] = json!({}),
            Form::Chat => choice["delta"] = json!({"content": new.text}),
        }
        self.chunk(choice)
    }

    /// What comes after everything was written.
    pub(crate) fn closing(&self, usage: Usage) -> Option<Value> {
        (self.delivery == Delivery::StreamWithUsage).then(|| {
            let mut chunk = self.envelope(self.chunk_object(), Vec::new());
            chunk["usage"] = told(usage);
            chunk
        })
    }

    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.envelope(self.chunk_object(), vec![choice]);
        if self.delivery == Delivery::StreamWithUsage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn chunk_object(&self) -> &'static str {
        match self.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion.chunk",
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

    fn logprobs(&self, entries: &[Entry]) -> Value {
        match (self.likeliest, self.form) {
            (None, _) => Value::Null,
            (Some(_), Form::Completion) => self.legacy_logprobs(entries),
            (Some(_), Form::Chat) => {
                let content: Vec<Value> = entries.iter().map(|entry| self.chat_logprob(entry)).collect();
                json!({"content": content, "refusal": null})
            }
        }
    }

    fn legacy_logprobs(&self, entries: &[Entry]) -> Value {
        let spelled = |token: u32| spelling::legacy(&self.tokenizer, token);
        let tokens: Vec<String> = entries.iter().map(|entry| spelled(entry.token)).collect();
        let chosen = |entry: &Entry| entry.likeliest.as_ref().map(|likeliest| written(likeliest.chosen));
        let top = |(entry, own): (&Entry, &String)| {
            let Likeliest { chosen, others } = entry.likeliest.as_ref()?;
            let mut top = Map::new();
            // Of tokens that are spelled alike, the likeliest counts.
            for &(token, value) in others {
                top.entry(spelled(token)).or_insert_with(|| json!(written(value)));
            }
            top.entry(own.clone()).or_insert_with(|| json!(written(*chosen)));
            Some(top)
        };
        json!({
            "token_logprobs": entries.iter().map(chosen).collect::<Vec<_>>(),
            "top_logprobs": entries.iter().zip(&tokens).map(top).collect::<Vec<_>>(),
            "text_offset": entries.iter().map(|entry| entry.offset).collect::<Vec<_>>(),
            "tokens": tokens,
        })
    }

    fn chat_logprob(&self, entry: &Entry) -> Value {
        let one = |token: u32, value: f64| {
            let (text, bytes) = spelling::with_bytes(&self.tokenizer, token);
            json!({"token": text, "logprob": written(value), "bytes": bytes})
        };
        let Some(Likeliest { chosen, others }) = &entry.likeliest else {
            return one(entry.token, f64::NEG_INFINITY);
        };
        let mut told = one(entry.token, *chosen);
        told["top_logprobs"] = others.iter().map(|&(token, value)| one(token, value)).collect();
        told
    }
}

/// The models there are, which is one.
pub(crate) fn model(name: &str, since: u64) -> Value {
    json!({"id": name, "object": "model", "created": since, "owned_by": "weightloom"})
}

/// Seconds since 1970 began.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn told(usage: Usage) -> Value {
    let Usage { prompt, completion } = usage;
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

fn reason(finish: Option<Finish>) -> Option<&'static str> {
    finish.map(|finish| match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    })
}

fn written(value: f64) -> f64 {
    if value.is_finite() { value } else { IMPOSSIBLE }
}
