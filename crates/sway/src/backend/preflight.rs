//! A first question that shows whether a backend returns finite numbers.

use super::{AnswerSink, Backend};
use crate::answer::Answer;
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};
use crate::view::View;

struct FirstProblem(Option<QueryError>);

impl AnswerSink for FirstProblem {
    fn answered(&mut self, _: usize, answer: Result<Answer, QueryError>) {
        let problem = match answer {
            Err(error) => Some(error),
            Ok(Answer::Distribution(found)) if found.tail.is_some_and(|tail| !tail.is_finite()) => {
                Some(QueryError::WrongKind { expected: "the probability of all other tokens".to_owned() })
            }
            Ok(_) => None,
        };
        self.0 = self.0.take().or(problem);
    }
}

/// Asks each view for next tokens and returns the first problem with an answer.
pub(super) fn first_problem(
    backend: &mut dyn Backend,
    views: &[View],
    top_k: usize,
) -> Result<Option<QueryError>, BackendError> {
    first_problem_with(backend, views, Query::Next { prompt: "hello".into(), top_k })
}

/// Asks each view a question and returns the first problem with an answer.
pub(super) fn first_problem_with(
    backend: &mut dyn Backend,
    views: &[View],
    query: Query,
) -> Result<Option<QueryError>, BackendError> {
    let questions: Vec<Question> = views.iter().map(|view| Question::new(view, query.clone())).collect();
    let mut first = FirstProblem(None);
    backend.answer(&questions, &mut first)?;
    Ok(first.0)
}
