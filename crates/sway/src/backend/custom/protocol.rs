//! What is said: JSON lines of version 1.

use serde_json::{Map, Value, json};
use weightloom_errors::nearest;

use super::error::{CustomError, PythonFault};
use crate::answer::{Answer, CompletionScore, Distribution, Divergence, Rolling, TokenNames};
use crate::backend::{Capabilities, Capability};
use crate::error::QueryError;
use crate::question::{Query, Question};
use crate::suite::{CustomModel, EntryPoint};
use crate::view::View;

/// The version of the protocol that is spoken.
pub const VERSION: u64 = 1;

/// What both sides call it.
const PROTOCOL: &str = "weightloom-sway";

/// How much of a line is shown.
const MOST_SHOWN: usize = 120;

/// What a program said of itself.
#[derive(Debug, PartialEq)]
pub(super) struct Welcome {
    pub(super) capabilities: Capabilities,
    pub(super) identity: Option<String>,
    pub(super) notes: Vec<String>,
}

/// What a program said to a question.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    pub(super) id: u64,
    pub(super) outcome: Result<Value, String>,
}

/// The first line that a program hears.
pub(super) fn hello(model: &CustomModel) -> String {
    let spec = &model.spec;
    let mut hello = json!({
        "protocol": PROTOCOL,
        "version": VERSION,
        "model": {
            "kind": spec.kind,
            "base": spec.base,
            "adapter": spec.adapter,
            "dtype": spec.dtype,
            "device": spec.device,
            "trust_remote_code": spec.trust_remote_code,
            "entry_point": spec.entry_point,
            "endpoint": spec.endpoint,
        },
    });
    if let EntryPoint::Python { module, class } = &model.entry {
        hello["python"] = json!({"module": module, "class": class, "folder": model.folder});
    }
    hello.to_string()
}

/// Reads what a program says first.
pub(super) fn welcome(program: &str, line: &str) -> Result<Welcome, CustomError> {
    let expected = "greeting";
    let unlike = || not_protocol(program, expected, line);
    let heard: Map<String, Value> = serde_json::from_str(line).map_err(|_| unlike())?;
    if let Some(error) = heard.get("error") {
        return Err(refused(program, error));
    }
    if heard.get("protocol").and_then(Value::as_str) != Some(PROTOCOL) {
        return Err(unlike());
    }
    let version = heard.get("version").and_then(Value::as_u64).ok_or_else(unlike)?;
    if version != VERSION {
        return Err(CustomError::Version { program: program.to_owned(), found: version });
    }
    let texts = |key: &str| -> Result<Vec<String>, CustomError> {
        match heard.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(list) => serde_json::from_value(list.clone()).map_err(|_| unlike()),
        }
    };
    let mut capabilities = Capabilities::new();
    for name in texts("capabilities")? {
        let known: Result<Capability, _> = serde_json::from_value(json!(name));
        capabilities.insert(known.map_err(|_| CustomError::Capability {
            program: program.to_owned(),
            near: nearest(&name, KNOWN).map(str::to_owned),
            found: name,
        })?);
    }
    let identity = match heard.get("identity") {
        None | Some(Value::Null) => None,
        Some(identity) => Some(identity.as_str().ok_or_else(unlike)?.to_owned()),
    };
    Ok(Welcome { capabilities, identity, notes: texts("notes")? })
}

/// What programs can say that they can do.
const KNOWN: [&str; 10] = [
    "differential",
    "scalable",
    "null_calibrated",
    "preflight",
    "cache_identity",
    "full_vocabulary",
    "embedding",
    "tokenizer",
    "attributable",
    "matched_noise",
];

fn refused(program: &str, error: &Value) -> CustomError {
    let message = error.get("message").unwrap_or(error);
    let message = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
    match error.get("kind").and_then(Value::as_str).and_then(PythonFault::named) {
        Some(fault) => CustomError::Python { entry: program.to_owned(), fault, message },
        None => CustomError::Refused { program: program.to_owned(), message },
    }
}

fn not_protocol(program: &str, expected: &'static str, line: &str) -> CustomError {
    let line = line.chars().take(MOST_SHOWN).collect();
    CustomError::NotProtocol { program: program.to_owned(), expected, line }
}

/// A question as a line.
pub(super) fn request(id: u64, question: &Question) -> String {
    json!({"id": id, "view": view(&question.view), "query": query(&question.query)}).to_string()
}

/// Asks whether it works at all.
pub(super) fn preflight(id: u64) -> String {
    json!({"id": id, "query": {"kind": "preflight"}}).to_string()
}

/// What a preflight found, if it found something.
pub(super) fn preflight_fault(answer: &Value) -> Option<String> {
    match answer.get("ok").and_then(Value::as_bool) {
        Some(true) => None,
        Some(false) => {
            let reason = answer.get("reason").and_then(Value::as_str);
            Some(reason.unwrap_or("it does not say why").to_owned())
        }
        None => Some("its preflight says neither yes nor no".to_owned()),
    }
}

fn view(view: &View) -> Value {
    match view {
        View::Base => json!({"kind": "base"}),
        View::Tuned => json!({"kind": "tuned"}),
        View::Scaled(strength) => json!({"kind": "scaled", "strength": strength.0}),
        View::Noise { seed, init_scale, rank_scale } => {
            json!({"kind": "noise", "seed": seed, "init_scale": init_scale.0, "rank_scale": rank_scale.0})
        }
        View::Matched { seed } => json!({"kind": "matched", "seed": seed}),
        View::Without { modules } => json!({"kind": "without", "modules": modules}),
    }
}

fn query(query: &Query) -> Value {
    let kind = name(query);
    match query {
        Query::Next { prompt, top_k } => json!({"kind": kind, "prompt": prompt, "top_k": top_k}),
        Query::Divergence { prompt, from } => json!({"kind": kind, "prompt": prompt, "from": view(from)}),
        Query::Completion { prompt, completion } => {
            json!({"kind": kind, "prompt": prompt, "completion": completion})
        }
        Query::Text { text } | Query::Embedding { text } => json!({"kind": kind, "text": text}),
        Query::Generate { prompt, max_new_tokens } => {
            json!({"kind": kind, "prompt": prompt, "max_new_tokens": max_new_tokens})
        }
        Query::Filler { tokens } => json!({"kind": kind, "tokens": tokens}),
    }
}

/// What a question is called.
pub(super) fn name(query: &Query) -> &'static str {
    match query {
        Query::Next { .. } => "next",
        Query::Divergence { .. } => "divergence",
        Query::Completion { .. } => "completion",
        Query::Text { .. } => "text",
        Query::Generate { .. } => "generate",
        Query::Embedding { .. } => "embedding",
        Query::Filler { .. } => "filler",
    }
}

/// Reads an answer's envelope.
pub(super) fn said(program: &str, line: &str) -> Result<Said, CustomError> {
    let unlike = || not_protocol(program, "answer", line);
    let mut heard: Map<String, Value> = serde_json::from_str(line).map_err(|_| unlike())?;
    let id = heard.get("id").and_then(Value::as_u64).ok_or_else(unlike)?;
    let outcome = match (heard.remove("answer"), heard.get("error")) {
        (Some(answer), None) => Ok(answer),
        (None, Some(error)) => Err(error.as_str().ok_or_else(unlike)?.to_owned()),
        _ => return Err(unlike()),
    };
    Ok(Said { id, outcome })
}

/// Reads the answer to a question.
pub(super) fn answer(question: &Question, value: &Value) -> Result<Answer, QueryError> {
    let reading = Reading { question, value };
    Ok(match &question.query {
        Query::Next { top_k, .. } => Answer::Distribution(reading.distribution(*top_k)?),
        Query::Divergence { .. } => {
            Answer::Divergence(Divergence { js: reading.number("js")?, kl: reading.number("kl")? })
        }
        Query::Completion { .. } => {
            // How many tokens there were is good to know, but not all know it.
            let tokens = reading.count("tokens")?.unwrap_or(0);
            Answer::Completion(CompletionScore { total: reading.number("total")?, tokens })
        }
        Query::Text { .. } => Answer::Rolling(reading.rolling()?),
        Query::Generate { .. } | Query::Filler { .. } => {
            let text = value.get("text").and_then(Value::as_str).ok_or_else(|| reading.unlike())?;
            Answer::Text(text.to_owned())
        }
        Query::Embedding { .. } => {
            let vector = reading.numbers("vector")?;
            let length = vector.iter().map(|part| part * part).sum::<f64>().sqrt();
            let unit = |part: f64| (if length > 0.0 { part / length } else { part }) as f32;
            Answer::Embedding(vector.into_iter().map(unit).collect())
        }
    })
}

struct Reading<'a> {
    question: &'a Question,
    value: &'a Value,
}

impl Reading<'_> {
    fn unlike(&self) -> QueryError {
        QueryError::WrongKind { expected: name(&self.question.query).to_owned() }
    }

    /// A number; the names of others are told as what they are.
    fn finite(&self, value: &Value) -> Result<f64, QueryError> {
        let odd = match value {
            Value::Number(number) => return number.as_f64().ok_or_else(|| self.unlike()),
            Value::String(text) => text.as_str(),
            _ => return Err(self.unlike()),
        };
        if !matches!(odd, "nan" | "inf" | "-inf") {
            return Err(self.unlike());
        }
        let text = match &self.question.query {
            Query::Next { prompt, .. }
            | Query::Divergence { prompt, .. }
            | Query::Generate { prompt, .. } => prompt,
            Query::Completion { completion, .. } => completion,
            Query::Text { text } | Query::Embedding { text } => text,
            Query::Filler { .. } => "",
        };
        Err(QueryError::NotFinite {
            view: self.question.view.to_string(),
            found: odd.to_owned(),
            text: text.chars().take(MOST_SHOWN).collect(),
        })
    }

    fn number(&self, key: &str) -> Result<f64, QueryError> {
        self.finite(self.value.get(key).ok_or_else(|| self.unlike())?)
    }

    fn maybe_number(&self, key: &str) -> Result<Option<f64>, QueryError> {
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.finite(value).map(Some),
        }
    }

    fn numbers(&self, key: &str) -> Result<Vec<f64>, QueryError> {
        let list = self.value.get(key).and_then(Value::as_array).ok_or_else(|| self.unlike())?;
        list.iter().map(|value| self.finite(value)).collect()
    }

    fn count(&self, key: &str) -> Result<Option<usize>, QueryError> {
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
                count.map(Some).ok_or_else(|| self.unlike())
            }
        }
    }

    fn distribution(&self, top_k: usize) -> Result<Distribution, QueryError> {
        let logprobs = self.numbers("logprobs")?;
        let tokens = self.value.get("tokens").cloned().ok_or_else(|| self.unlike())?;
        let ids: Result<Vec<u32>, _> = serde_json::from_value(tokens.clone());
        let names = match ids {
            Ok(ids) => TokenNames::Ids(ids),
            Err(_) => TokenNames::Strings(serde_json::from_value(tokens).map_err(|_| self.unlike())?),
        };
        let count = names.len();
        if count == 0 || count != logprobs.len() || count > top_k.max(1) {
            return Err(self.unlike());
        }
        let logprobs = logprobs.into_iter().map(|logprob| logprob as f32).collect();
        let (vocabulary, tail) = (self.count("vocabulary")?, self.maybe_number("tail")?);
        Ok(Distribution { tokens: names, logprobs, vocabulary, tail })
    }

    fn rolling(&self) -> Result<Rolling, QueryError> {
        let logprobs = self.numbers("logprobs")?;
        let total = self.maybe_number("total")?.unwrap_or_else(|| logprobs.iter().sum());
        let tokens = self.count("tokens")?.unwrap_or(logprobs.len() + 1);
        if tokens.saturating_sub(1) != logprobs.len() {
            return Err(self.unlike());
        }
        Ok(Rolling { logprobs: logprobs.into_iter().map(|logprob| logprob as f32).collect(), tokens, total })
    }
}
