//! Asking a backend in tests.

use super::{Backend, Watch};
use crate::answer::Answer;
use crate::error::{AskError, SwayError};
use crate::question::{Ask, Question};
use crate::view::View;

struct Answers(Told);

impl Watch for Answers {
    fn answered(&mut self, place: usize, answer: Result<Answer, AskError>) {
        assert!(self.0[place].is_none(), "question {place} was answered twice");
        self.0[place] = Some(answer);
    }
}

/// What was told, by the place of the question.
pub(super) type Told = Vec<Option<Result<Answer, AskError>>>;

/// Asks questions.
pub(super) fn ask(backend: &mut dyn Backend, questions: &[Question]) -> (Told, Result<(), SwayError>) {
    let mut answers = Answers(questions.iter().map(|_| None).collect());
    let ended = backend.answer(questions, &mut answers);
    (answers.0, ended)
}

/// Asks one question.
pub(super) fn ask_one(backend: &mut dyn Backend, view: &View, one: Ask) -> Result<Answer, AskError> {
    let (mut told, ended) = ask(backend, &[Question::new(view, one)]);
    assert_eq!(ended, Ok(()));
    told.remove(0).expect("an answer")
}
