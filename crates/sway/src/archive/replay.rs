//! A backend that knows only the answers of an archive.

use super::{Answers, Manifest};
use crate::backend::{AnswerSink, Backend, Description};
use crate::chat::ChatSupport;
use crate::error::{BackendError, QueryError};
use crate::question::Question;

/// Answers from an archive. It has the description of the backend that was
/// packed, and no model.
#[derive(Debug)]
pub struct Replay<'a> {
    manifest: &'a Manifest,
    answers: &'a Answers,
}

impl<'a> Replay<'a> {
    pub(super) fn new(manifest: &'a Manifest, answers: &'a Answers) -> Self {
        Self { manifest, answers }
    }
}

impl Backend for Replay<'_> {
    fn description(&self) -> &Description {
        &self.manifest.backend
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        for (index, question) in questions.iter().enumerate() {
            let answer = self.answers.get(question).cloned().unwrap_or_else(|| {
                let message =
                    format!("the archive has no answer of the view `{}` to this question", question.view);
                Err(QueryError::Failed { message })
            });
            sink.answered(index, answer);
        }
        Ok(())
    }

    fn layers(&self) -> Vec<String> {
        self.manifest.layers.clone()
    }

    fn chat_support(&self) -> ChatSupport {
        self.manifest.chat.clone()
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}
