//! A backend whose panics are errors.

use weightloom_errors::{Panicked, caught};

use super::{AnswerSink, Backend, Description};
use crate::chat::ChatSupport;
use crate::error::BackendError;
use crate::question::Question;

/// A backend whose panics are errors: answers received before are cached, and a
/// later run resumes from them.
pub(super) struct Guarded(pub(super) Box<dyn Backend>);

impl Guarded {
    fn failed(&self, Panicked { message }: Panicked) -> BackendError {
        BackendError {
            backend: self.0.description().kind.clone(),
            message: format!("it panicked: {message}"),
            hint: None,
        }
    }
}

impl Backend for Guarded {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let answered = caught(|| self.0.answer(questions, sink));
        answered.unwrap_or_else(|panic| Err(self.failed(panic)))
    }

    fn base_identity(&self) -> Option<String> {
        self.0.base_identity()
    }

    fn layers(&self) -> Vec<String> {
        self.0.layers()
    }

    fn chat_support(&self) -> ChatSupport {
        self.0.chat_support()
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        let checked = caught(|| self.0.preflight());
        checked.unwrap_or_else(|panic| Err(self.failed(panic)))
    }
}
