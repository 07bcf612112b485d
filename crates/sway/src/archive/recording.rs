//! A backend that keeps every answer it passes on.

use super::Answers;
use crate::answer::Answer;
use crate::backend::{AnswerSink, Backend, Description};
use crate::cache::Cache;
use crate::chat::ChatSupport;
use crate::error::{BackendError, QueryError};
use crate::question::Question;

/// Answers from a cache, else from another backend, and keeps all answers.
pub struct Recording<'a> {
    inner: &'a mut dyn Backend,
    cache: Option<Cache>,
    answers: Answers,
}

impl<'a> Recording<'a> {
    /// Records a backend, with the answers that earlier runs cached.
    pub fn new(inner: &'a mut dyn Backend, cache: Option<Cache>) -> Self {
        Self { inner, cache, answers: Answers::new() }
    }

    /// All answers so far.
    pub(crate) fn into_answers(self) -> Answers {
        self.answers
    }
}

/// Keeps answers on their way to a sink.
struct Keeper<'a> {
    questions: &'a [Question],
    indices: &'a [usize],
    answers: &'a mut Answers,
    sink: &'a mut dyn AnswerSink,
}

impl AnswerSink for Keeper<'_> {
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
        let (Some(question), Some(place)) = (self.questions.get(index), self.indices.get(index)) else {
            return;
        };
        self.answers.insert(question.clone(), answer.clone());
        self.sink.answered(*place, answer);
    }

    fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }
}

impl Backend for Recording<'_> {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let (mut rest, mut indices) = (Vec::new(), Vec::new());
        for (index, question) in questions.iter().enumerate() {
            match self.cache.as_ref().and_then(|cache| cache.get(question)) {
                Some(answer) => {
                    self.answers.insert(question.clone(), answer.clone());
                    sink.answered(index, answer.clone());
                }
                None => {
                    rest.push(question.clone());
                    indices.push(index);
                }
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let mut keeper = Keeper { questions: &rest, indices: &indices, answers: &mut self.answers, sink };
        self.inner.answer(&rest, &mut keeper)
    }

    fn base_identity(&self) -> Option<String> {
        self.inner.base_identity()
    }

    fn layers(&self) -> Vec<String> {
        self.inner.layers()
    }

    fn chat_support(&self) -> ChatSupport {
        self.inner.chat_support()
    }

    /// Passed by the run that filled the cache, if there is one.
    fn preflight(&mut self) -> Result<(), BackendError> {
        match &self.cache {
            Some(cache) if !cache.is_empty() => Ok(()),
            _ => self.inner.preflight(),
        }
    }
}
