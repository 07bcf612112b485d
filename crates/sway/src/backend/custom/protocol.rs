//! Messages of the protocol, version 2: JSON lines.
//!
//! Version 1 has no messages of chats; a program that speaks it is asked with
//! plain text only.

use serde_json::{Map, Value, json};
use weightloom_errors::nearest;

use super::error::{CustomError, PythonProblem};
use crate::answer::{Answer, CompletionScore, Distribution, Divergence, Rolling, TokenNames};
use crate::backend::{Capabilities, Capability};
use crate::error::QueryError;
use crate::prompt::Prompt;
use crate::question::{Query, Question};
use crate::suite::{CustomModel, EntryPoint};
use crate::view::View;

/// Version of the protocol.
pub const VERSION: u64 = 2;

/// The oldest version that programs may speak.
const OLDEST: u64 = 1;

/// Name of the protocol in both greetings.
const PROTOCOL: &str = "weightloom-sway";

/// Characters of a line shown in messages.
const MAX_SHOWN: usize = 120;

/// A program's greeting.
#[derive(Debug, PartialEq)]
pub(super) struct Greeting {
    pub(super) capabilities: Capabilities,
    pub(super) identity: Option<String>,
    pub(super) notes: Vec<String>,
}

/// A program's response to a request.
#[derive(Debug, PartialEq)]
pub(super) struct Response {
    pub(super) id: u64,
    pub(super) outcome: Result<Value, String>,
}

/// The first line sent to a program.
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

/// Parses the first line of a program.
pub(super) fn greeting(program: &str, line: &str) -> Result<Greeting, CustomError> {
    let invalid = || not_protocol(program, "greeting", line);
    let message: Map<String, Value> = serde_json::from_str(line).map_err(|_| invalid())?;
    if let Some(error) = message.get("error") {
        return Err(refused(program, error));
    }
    if message.get("protocol").and_then(Value::as_str) != Some(PROTOCOL) {
        return Err(invalid());
    }
    let version = message.get("version").and_then(Value::as_u64).ok_or_else(invalid)?;
    if !(OLDEST..=VERSION).contains(&version) {
        return Err(CustomError::Version { program: program.to_owned(), found: version });
    }
    let strings = |key: &str| -> Result<Vec<String>, CustomError> {
        match message.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(list) => serde_json::from_value(list.clone()).map_err(|_| invalid()),
        }
    };
    let mut capabilities = Capabilities::new();
    for name in strings("capabilities")? {
        let known: Result<Capability, _> = serde_json::from_value(json!(name));
        capabilities.insert(known.map_err(|_| CustomError::Capability {
            program: program.to_owned(),
            near: nearest(&name, CAPABILITIES).map(str::to_owned),
            found: name,
        })?);
    }
    if version < 2 {
        capabilities.remove(&Capability::Chat);
    }
    let identity = match message.get("identity") {
        None | Some(Value::Null) => None,
        Some(identity) => Some(identity.as_str().ok_or_else(invalid)?.to_owned()),
    };
    Ok(Greeting { capabilities, identity, notes: strings("notes")? })
}

/// The capabilities by name.
const CAPABILITIES: [&str; 11] = [
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
    "chat",
];

fn refused(program: &str, error: &Value) -> CustomError {
    let message = error.get("message").unwrap_or(error);
    let message = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
    match error.get("kind").and_then(Value::as_str).and_then(PythonProblem::named) {
        Some(problem) => CustomError::Python { entry: program.to_owned(), problem, message },
        None => CustomError::Refused { program: program.to_owned(), message },
    }
}

fn not_protocol(program: &str, expected: &'static str, line: &str) -> CustomError {
    let line = line.chars().take(MAX_SHOWN).collect();
    CustomError::NotProtocol { program: program.to_owned(), expected, line }
}

/// A question as a request line.
pub(super) fn request(id: u64, question: &Question) -> String {
    json!({"id": id, "view": view(&question.view), "query": query(&question.query)}).to_string()
}

/// A request for the program's own preflight check.
pub(super) fn preflight(id: u64) -> String {
    json!({"id": id, "query": {"kind": "preflight"}}).to_string()
}

/// The problem that a preflight check found, if any.
pub(super) fn preflight_problem(answer: &Value) -> Option<String> {
    match answer.get("ok").and_then(Value::as_bool) {
        Some(true) => None,
        Some(false) => {
            let reason = answer.get("reason").and_then(Value::as_str);
            Some(reason.unwrap_or("the preflight check failed without a reason").to_owned())
        }
        None => Some("the preflight answer lacks `ok`".to_owned()),
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
        Query::Next { prompt, top_k } => with_prompt(json!({"kind": kind, "top_k": top_k}), prompt),
        Query::Divergence { prompt, from } => with_prompt(json!({"kind": kind, "from": view(from)}), prompt),
        Query::Completion { prompt, completion } => {
            with_prompt(json!({"kind": kind, "completion": completion}), prompt)
        }
        Query::Text { text } | Query::Embedding { text } => json!({"kind": kind, "text": text}),
        Query::Generate { prompt, max_new_tokens } => {
            with_prompt(json!({"kind": kind, "max_new_tokens": max_new_tokens}), prompt)
        }
        Query::Sample { prompt, max_new_tokens, temperature, top_p, seed } => {
            let fields = json!({"kind": kind, "max_new_tokens": max_new_tokens,
                "temperature": temperature.0, "top_p": top_p.0, "seed": seed});
            with_prompt(fields, prompt)
        }
        Query::Filler { tokens } => json!({"kind": kind, "tokens": tokens}),
    }
}

/// Adds the prompt as `prompt`, or its messages as `messages`.
fn with_prompt(mut query: Value, prompt: &Prompt) -> Value {
    let key = match prompt {
        Prompt::Text(_) => "prompt",
        Prompt::Messages(_) => "messages",
    };
    query[key] = json!(prompt);
    query
}

/// The name of a query.
pub(super) fn name(query: &Query) -> &'static str {
    match query {
        Query::Next { .. } => "next",
        Query::Divergence { .. } => "divergence",
        Query::Completion { .. } => "completion",
        Query::Text { .. } => "text",
        Query::Generate { .. } => "generate",
        Query::Sample { .. } => "sample",
        Query::Embedding { .. } => "embedding",
        Query::Filler { .. } => "filler",
    }
}

/// Parses a response.
pub(super) fn response(program: &str, line: &str) -> Result<Response, CustomError> {
    let invalid = || not_protocol(program, "answer", line);
    let mut message: Map<String, Value> = serde_json::from_str(line).map_err(|_| invalid())?;
    let id = message.get("id").and_then(Value::as_u64).ok_or_else(invalid)?;
    let outcome = match (message.remove("answer"), message.get("error")) {
        (Some(answer), None) => Ok(answer),
        (None, Some(error)) => Err(error.as_str().ok_or_else(invalid)?.to_owned()),
        _ => return Err(invalid()),
    };
    Ok(Response { id, outcome })
}

/// Parses the answer to a question.
pub(super) fn answer(question: &Question, value: &Value) -> Result<Answer, QueryError> {
    let fields = Fields { question, value };
    Ok(match &question.query {
        Query::Next { top_k, .. } => Answer::Distribution(fields.distribution(*top_k)?),
        Query::Divergence { .. } => {
            Answer::Divergence(Divergence { js: fields.number("js")?, kl: fields.number("kl")? })
        }
        Query::Completion { .. } => {
            // Not every program knows the number of tokens.
            let tokens = fields.count("tokens")?.unwrap_or(0);
            Answer::Completion(CompletionScore { total: fields.number("total")?, tokens })
        }
        Query::Text { .. } => Answer::Rolling(fields.rolling()?),
        Query::Generate { .. } | Query::Sample { .. } | Query::Filler { .. } => {
            let text = value.get("text").and_then(Value::as_str).ok_or_else(|| fields.wrong_kind())?;
            Answer::Text(text.to_owned())
        }
        Query::Embedding { .. } => {
            let vector = fields.numbers("vector")?;
            let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
            let unit = |x: f64| (if norm > 0.0 { x / norm } else { x }) as f32;
            Answer::Embedding(vector.into_iter().map(unit).collect())
        }
    })
}

struct Fields<'a> {
    question: &'a Question,
    value: &'a Value,
}

impl Fields<'_> {
    fn wrong_kind(&self) -> QueryError {
        QueryError::WrongKind { expected: name(&self.question.query).to_owned() }
    }

    /// A finite number; an error for the strings `nan`, `inf` and `-inf`.
    fn finite(&self, value: &Value) -> Result<f64, QueryError> {
        let name = match value {
            Value::Number(number) => return number.as_f64().ok_or_else(|| self.wrong_kind()),
            Value::String(text) => text.as_str(),
            _ => return Err(self.wrong_kind()),
        };
        if !matches!(name, "nan" | "inf" | "-inf") {
            return Err(self.wrong_kind());
        }
        let text = match &self.question.query {
            Query::Next { prompt, .. }
            | Query::Divergence { prompt, .. }
            | Query::Generate { prompt, .. }
            | Query::Sample { prompt, .. } => prompt.to_string(),
            Query::Completion { completion, .. } => completion.clone(),
            Query::Text { text } | Query::Embedding { text } => text.clone(),
            Query::Filler { .. } => String::new(),
        };
        Err(QueryError::NotFinite {
            view: self.question.view.to_string(),
            found: name.to_owned(),
            text: text.chars().take(MAX_SHOWN).collect(),
        })
    }

    fn number(&self, key: &str) -> Result<f64, QueryError> {
        self.finite(self.value.get(key).ok_or_else(|| self.wrong_kind())?)
    }

    fn maybe_number(&self, key: &str) -> Result<Option<f64>, QueryError> {
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.finite(value).map(Some),
        }
    }

    fn numbers(&self, key: &str) -> Result<Vec<f64>, QueryError> {
        let list = self.value.get(key).and_then(Value::as_array).ok_or_else(|| self.wrong_kind())?;
        list.iter().map(|value| self.finite(value)).collect()
    }

    fn count(&self, key: &str) -> Result<Option<usize>, QueryError> {
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
                count.map(Some).ok_or_else(|| self.wrong_kind())
            }
        }
    }

    fn distribution(&self, top_k: usize) -> Result<Distribution, QueryError> {
        let logprobs = self.numbers("logprobs")?;
        let tokens = self.value.get("tokens").cloned().ok_or_else(|| self.wrong_kind())?;
        let ids: Result<Vec<u32>, _> = serde_json::from_value(tokens.clone());
        let names = match ids {
            Ok(ids) => TokenNames::Ids(ids),
            Err(_) => TokenNames::Strings(serde_json::from_value(tokens).map_err(|_| self.wrong_kind())?),
        };
        let count = names.len();
        if count == 0 || count != logprobs.len() || count > top_k.max(1) {
            return Err(self.wrong_kind());
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
            return Err(self.wrong_kind());
        }
        Ok(Rolling { logprobs: logprobs.into_iter().map(|logprob| logprob as f32).collect(), tokens, total })
    }
}
