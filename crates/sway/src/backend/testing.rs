//! Backends and their answers in tests.

use super::dummy::Dummy;
use super::{AnswerSink, Backend, Description};
use crate::answer::Answer;
use crate::chat::{ChatSupport, ChatUsage};
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};
use crate::view::View;

/// Answers by index of the question; `None` if the question was not answered.
pub(super) type Collected = Vec<Option<Result<Answer, QueryError>>>;

struct Collector(Collected);

impl AnswerSink for Collector {
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
        assert!(self.0[index].is_none(), "question {index} was answered twice");
        self.0[index] = Some(answer);
    }
}

/// Asks several questions at once.
pub(super) fn ask(
    backend: &mut dyn Backend,
    questions: &[Question],
) -> (Collected, Result<(), BackendError>) {
    let mut collector = Collector(questions.iter().map(|_| None).collect());
    let result = backend.answer(questions, &mut collector);
    (collector.0, result)
}

/// Asks one question and returns its answer.
pub(super) fn ask_one(backend: &mut dyn Backend, view: &View, query: Query) -> Result<Answer, QueryError> {
    let (mut answers, result) = ask(backend, &[Question::new(view, query)]);
    assert_eq!(result, Ok(()));
    answers.remove(0).expect("an answer")
}

/// Canned answers of a model that is used for chats.
#[derive(Default)]
pub(crate) struct ChatDummy {
    pub(crate) inner: Dummy,
    /// All questions so far.
    pub(crate) asked: Vec<Question>,
}

impl Backend for ChatDummy {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        self.asked.extend_from_slice(questions);
        self.inner.answer(questions, sink)
    }

    fn chat_support(&self) -> ChatSupport {
        ChatSupport::new(ChatUsage::Chat, "a test says so")
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}
