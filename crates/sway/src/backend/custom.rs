//! Answers from something of the user's own: a program that speaks JSON lines,
//! or a Python class written for dlm-sway, run by a program that we bring.
//!
//! What is said is in `docs/sway-backend-protocol.md`. The program says first
//! what it can do; it then answers questions in any order. One that dies, says
//! nonsense or keeps silent is ended, and its questions have no answers.

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

pub use error::{CustomError, PythonFault};
pub use protocol::VERSION;

use super::preflight::first_problem;
use super::{AnswerSink, Backend, Capability, Description};
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};
use crate::suite::{CustomModel, EntryPoint};
use crate::view::View;
use child::Child;
use protocol::Said;

/// The kind, as a suite file calls it.
const KIND: &str = "custom";

/// The program that runs a Python class.
const PYTHON: &str = include_str!("custom/run_class.py");

/// How patient we are, and who hears what the program has to say.
#[derive(Clone)]
pub struct CustomOptions {
    /// How long it may take to say what it can do: models are loaded then.
    pub start_limit: Duration,
    /// How long nothing may come while questions wait, unless the model says
    /// otherwise.
    pub answer_limit: Duration,
    /// How many questions wait for answers at once.
    pub window: usize,
    /// The program that runs Python classes.
    pub python: String,
    /// Hears every line of its error output.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for CustomOptions {
    fn default() -> Self {
        Self {
            start_limit: Duration::from_secs(300),
            answer_limit: Duration::from_secs(60),
            window: 16,
            python: "python3".to_owned(),
            log: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for CustomOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomOptions")
            .field("start_limit", &self.start_limit)
            .field("answer_limit", &self.answer_limit)
            .field("window", &self.window)
            .field("python", &self.python)
            .finish_non_exhaustive()
    }
}

/// Something of the user's own.
pub struct CustomBackend {
    description: Description,
    /// None once it was ended.
    child: Option<Child>,
    answer_limit: Duration,
    window: usize,
    next_id: u64,
}

impl fmt::Debug for CustomBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomBackend").field("description", &self.description).finish_non_exhaustive()
    }
}

impl CustomBackend {
    /// Starts it, and hears what it can do.
    pub fn start(model: &CustomModel, options: &CustomOptions) -> Result<Self, CustomError> {
        let (name, command) = command(model, options);
        let mut child = Child::start(&name, command, &options.log)?;
        child.send(protocol::hello(model));
        let line = child.receive(options.start_limit)?;
        let heard = protocol::welcome(&name, &line)?;
        if !heard.capabilities.contains(&Capability::Differential) {
            return Err(CustomError::NotDifferential { program: name });
        }
        let mut capabilities = heard.capabilities;
        if heard.identity.is_some() {
            capabilities.insert(Capability::CacheIdentity);
        } else {
            capabilities.remove(&Capability::CacheIdentity);
        }
        let description = Description {
            kind: KIND.to_owned(),
            base: model.spec.base.clone(),
            adapter: model.spec.adapter.clone().or_else(|| Some(name.clone())),
            capabilities,
            notes: heard.notes,
            identity: heard.identity.map(|identity| format!("custom:{name}:{identity}")),
        };
        let answer_limit = model.spec.timeout_s.map_or(options.answer_limit, Duration::from_secs);
        let window = options.window.max(1);
        Ok(Self { description, child: Some(child), answer_limit, window, next_id: 0 })
    }

    /// Whether it said that it can do this. What is not said is not asked.
    fn able(&self, question: &Question) -> bool {
        let has = |capability: Capability| self.description.capabilities.contains(&capability);
        let seen = |view: &View| match view {
            View::Base | View::Tuned => true,
            View::Scaled(_) => has(Capability::Scalable),
            View::Noise { .. } => has(Capability::NullCalibrated),
            View::Matched { .. } => has(Capability::MatchedNoise),
            View::Without { .. } => has(Capability::Attributable),
        };
        seen(&question.view)
            && match &question.query {
                Query::Divergence { from, .. } => has(Capability::FullVocabulary) && seen(from),
                Query::Embedding { .. } => has(Capability::Embedding),
                Query::Filler { .. } => has(Capability::Tokenizer),
                _ => true,
            }
    }

    /// Asks, and tells what comes by the numbers of the questions.
    fn exchange(
        &mut self,
        questions: &[(usize, Asking<'_>)],
        mut tell: impl FnMut(usize, Result<&Value, String>),
    ) -> Result<(), CustomError> {
        let Some(child) = &mut self.child else { return Err(CustomError::Ended) };
        let mut waiting: VecDeque<&(usize, Asking<'_>)> = questions.iter().collect();
        let mut asked: BTreeMap<u64, usize> = BTreeMap::new();
        loop {
            while asked.len() < self.window
                && let Some((place, asking)) = waiting.pop_front()
            {
                self.next_id += 1;
                asked.insert(self.next_id, *place);
                child.send(match asking {
                    Asking::Question(question) => protocol::request(self.next_id, question),
                    Asking::Preflight => protocol::preflight(self.next_id),
                });
            }
            if asked.is_empty() {
                return Ok(());
            }
            let line = child.receive(self.answer_limit)?;
            let Said { id, outcome } = protocol::said(child.name(), &line)?;
            let place = asked
                .remove(&id)
                .ok_or_else(|| CustomError::UnknownId { program: child.name().to_owned(), id })?;
            tell(place, outcome.as_ref().map_err(String::clone));
        }
    }

    /// Ends the program, and says why.
    fn ended(&mut self, error: &CustomError) -> BackendError {
        self.child = None;
        error.as_end()
    }
}

/// What is asked of a program.
#[derive(Clone, Copy)]
enum Asking<'a> {
    Question(&'a Question),
    Preflight,
}

/// What is started, and what it is called.
fn command(model: &CustomModel, options: &CustomOptions) -> (String, Command) {
    match &model.entry {
        EntryPoint::Program { path } => (path.display().to_string(), Command::new(path)),
        EntryPoint::Python { module, class } => {
            let mut command = Command::new(&options.python);
            command.arg("-c").arg(PYTHON);
            (format!("{module}:{class}"), command)
        }
    }
}

impl Backend for CustomBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let mut able = Vec::new();
        for (place, question) in questions.iter().enumerate() {
            if self.able(question) {
                able.push((place, Asking::Question(question)));
            } else {
                let query = format!("{} of {}", protocol::name(&question.query), question.view);
                sink.answered(place, Err(QueryError::Unsupported { backend: KIND.to_owned(), query }));
            }
        }
        // Whoever has to change its model for a view does so once for each.
        able.sort_by_key(|(place, _)| &questions[*place].view);
        let done = self.exchange(&able, |place, outcome| {
            let answer = match outcome {
                Ok(value) => protocol::answer(&questions[place], value),
                Err(message) => Err(QueryError::Failed { message }),
            };
            sink.answered(place, answer);
        });
        done.map_err(|error| self.ended(&error))
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        let mut first = None;
        if self.description.capabilities.contains(&Capability::Preflight) {
            let done = self.exchange(&[(0, Asking::Preflight)], |_, outcome| {
                first = match outcome {
                    Ok(value) => protocol::preflight_fault(value),
                    Err(message) => Some(message),
                };
            });
            done.map_err(|error| self.ended(&error))?;
        } else {
            let fault = first_problem(self, &[View::Base, View::Tuned], 8)?;
            first = fault.map(|error| error.to_string());
        }
        match first {
            None => Ok(()),
            Some(message) => Err(BackendError {
                backend: KIND.to_owned(),
                message,
                hint: Some("see why the backend of `entry_point` gives no numbers".to_owned()),
            }),
        }
    }
}
