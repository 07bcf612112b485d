//! Collects the answers of a backend in tests.

use super::{AnswerSink, Backend};
use crate::answer::Answer;
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
