//! Custom backends: a user's program that speaks JSON lines, or a Python class
//! written for dlm-sway.
//!
//! `docs/sway-backend-protocol.md` describes the protocol. The program first
//! lists its capabilities, then answers questions in any order. A program that
//! exits, violates the protocol or exceeds a time limit is killed, and its
//! remaining questions have no answers.

mod child;
mod error;
mod protocol;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

pub use error::{CustomError, PythonProblem};
pub use protocol::VERSION;

use super::preflight::first_problem;
use super::{AnswerSink, Backend, Capability, Description};
use crate::chat::{ChatSupport, ChatUsage};
use crate::error::{BackendError, QueryError};
use crate::prompt::Prompt;
use crate::question::{Query, Question};
use crate::suite::{CustomModel, EntryPoint};
use crate::view::View;
use child::Child;
use protocol::Response;

/// The kind in suite files.
const KIND: &str = "custom";

/// The script that serves a Python class.
const RUN_CLASS: &str = include_str!("custom/run_class.py");

/// Time limits and environment of a custom backend.
#[derive(Clone)]
pub struct CustomOptions {
    /// Time limit of the handshake, in which the program loads its models.
    pub start_timeout: Duration,
    /// Time limit between answers, unless the model sets `timeout_s`.
    pub answer_timeout: Duration,
    /// Most questions in flight.
    pub max_in_flight: usize,
    /// The Python interpreter for classes.
    pub python: String,
    /// Receives every line of the program's standard error.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for CustomOptions {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(300),
            answer_timeout: Duration::from_secs(60),
            max_in_flight: 16,
            python: "python3".to_owned(),
            log: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for CustomOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomOptions")
            .field("start_timeout", &self.start_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("max_in_flight", &self.max_in_flight)
            .field("python", &self.python)
            .finish_non_exhaustive()
    }
}

/// A program or Python class that answers questions.
pub struct CustomBackend {
    description: Description,
    /// `None` after a failure.
    child: Option<Child>,
    answer_timeout: Duration,
    max_in_flight: usize,
    next_id: u64,
}

impl fmt::Debug for CustomBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomBackend").field("description", &self.description).finish_non_exhaustive()
    }
}

impl CustomBackend {
    /// Starts the program and reads its capabilities.
    pub fn start(model: &CustomModel, options: &CustomOptions) -> Result<Self, CustomError> {
        let (name, command) = command(model, options);
        let mut child = Child::start(&name, command, &options.log)?;
        child.send(protocol::hello(model));
        let line = child.receive(options.start_timeout)?;
        let greeting = protocol::greeting(&name, &line)?;
        if !greeting.capabilities.contains(&Capability::Differential) {
            return Err(CustomError::NotDifferential { program: name });
        }
        let mut capabilities = greeting.capabilities;
        if greeting.identity.is_some() {
            capabilities.insert(Capability::CacheIdentity);
        } else {
            capabilities.remove(&Capability::CacheIdentity);
        }
        let description = Description {
            kind: KIND.to_owned(),
            base: model.spec.base.clone(),
            adapter: model.spec.adapter.clone().or_else(|| Some(name.clone())),
            capabilities,
            notes: greeting.notes,
            identity: greeting.identity.map(|identity| format!("custom:{name}:{identity}")),
        };
        let answer_timeout = model.spec.timeout_s.map_or(options.answer_timeout, Duration::from_secs);
        let max_in_flight = options.max_in_flight.max(1);
        Ok(Self { description, child: Some(child), answer_timeout, max_in_flight, next_id: 0 })
    }

    /// Whether the program's capabilities cover a question.
    fn supports(&self, question: &Question) -> bool {
        let has = |capability: Capability| self.description.capabilities.contains(&capability);
        let has_view = |view: &View| match view {
            View::Base | View::Tuned => true,
            View::Scaled(_) => has(Capability::Scalable),
            View::Noise { .. } => has(Capability::NullCalibrated),
            View::Matched { .. } => has(Capability::MatchedNoise),
            View::Without { .. } => has(Capability::Attributable),
        };
        let has_prompt = match &question.query {
            Query::Next { prompt, .. }
            | Query::Divergence { prompt, .. }
            | Query::Completion { prompt, .. }
            | Query::Generate { prompt, .. } => matches!(prompt, Prompt::Text(_)) || has(Capability::Chat),
            _ => true,
        };
        has_view(&question.view)
            && has_prompt
            && match &question.query {
                Query::Divergence { from, .. } => has(Capability::FullVocabulary) && has_view(from),
                Query::Embedding { .. } => has(Capability::Embedding),
                Query::Filler { .. } => has(Capability::Tokenizer),
                _ => true,
            }
    }

    /// Sends requests and passes each answer on with the index of its question.
    fn exchange(
        &mut self,
        requests: &[(usize, Request<'_>)],
        mut on_answer: impl FnMut(usize, Result<&Value, String>),
    ) -> Result<(), CustomError> {
        let Some(child) = &mut self.child else { return Err(CustomError::Stopped) };
        let mut queue: VecDeque<&(usize, Request<'_>)> = requests.iter().collect();
        let mut in_flight: BTreeMap<u64, usize> = BTreeMap::new();
        loop {
            while in_flight.len() < self.max_in_flight
                && let Some((index, request)) = queue.pop_front()
            {
                self.next_id += 1;
                in_flight.insert(self.next_id, *index);
                child.send(match request {
                    Request::Question(question) => protocol::request(self.next_id, question),
                    Request::Preflight => protocol::preflight(self.next_id),
                });
            }
            if in_flight.is_empty() {
                return Ok(());
            }
            let line = child.receive(self.answer_timeout)?;
            let Response { id, outcome } = protocol::response(child.name(), &line)?;
            let index = in_flight
                .remove(&id)
                .ok_or_else(|| CustomError::UnknownId { program: child.name().to_owned(), id })?;
            on_answer(index, outcome.as_ref().map_err(String::clone));
        }
    }

    /// Kills the program after an error.
    fn stop(&mut self, error: &CustomError) -> BackendError {
        self.child = None;
        BackendError::new(KIND, error)
    }
}

/// A message to the program.
#[derive(Clone, Copy)]
enum Request<'a> {
    Question(&'a Question),
    Preflight,
}

/// The name and command of the program.
fn command(model: &CustomModel, options: &CustomOptions) -> (String, Command) {
    match &model.entry {
        EntryPoint::Program { path } => (path.display().to_string(), Command::new(path)),
        EntryPoint::Python { module, class } => {
            let mut command = Command::new(&options.python);
            command.arg("-c").arg(RUN_CLASS);
            (format!("{module}:{class}"), command)
        }
    }
}

impl Backend for CustomBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let mut requests = Vec::new();
        for (index, question) in questions.iter().enumerate() {
            if self.supports(question) {
                requests.push((index, Request::Question(question)));
            } else {
                let query = format!("`{}` of the view `{}`", protocol::name(&question.query), question.view);
                sink.answered(index, Err(QueryError::Unsupported { backend: KIND.to_owned(), query }));
            }
        }
        // A program that switches models between views does so once per view.
        requests.sort_by_key(|(index, _)| &questions[*index].view);
        let done = self.exchange(&requests, |index, outcome| {
            let answer = match outcome {
                Ok(value) => protocol::answer(&questions[index], value),
                Err(message) => Err(QueryError::Failed { message }),
            };
            sink.answered(index, answer);
        });
        done.map_err(|error| self.stop(&error))
    }

    fn chat_support(&self) -> ChatSupport {
        match self.description.capabilities.contains(&Capability::Chat) {
            true => ChatSupport::new(ChatUsage::Chat, "the backend has the capability `chat`"),
            false => ChatSupport::default(),
        }
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        let mut problem = None;
        if self.description.capabilities.contains(&Capability::Preflight) {
            let done = self.exchange(&[(0, Request::Preflight)], |_, outcome| {
                problem = match outcome {
                    Ok(value) => protocol::preflight_problem(value),
                    Err(message) => Some(message),
                };
            });
            done.map_err(|error| self.stop(&error))?;
        } else {
            let found = first_problem(self, &[View::Base, View::Tuned], 8)?;
            problem = found.map(|error| error.to_string());
        }
        match problem {
            None => Ok(()),
            Some(message) => Err(BackendError {
                backend: KIND.to_owned(),
                message,
                hint: Some("check the backend named by `entry_point`".to_owned()),
            }),
        }
    }
}
