//! Forwarding some of the questions to another backend.

use super::{AnswerSink, Backend};
use crate::answer::Answer;
use crate::error::{BackendError, QueryError};
use crate::question::Question;

/// Translates indices of the subset to those of the caller.
struct IndexMapper<'a> {
    indices: &'a [usize],
    sink: &'a mut dyn AnswerSink,
}

impl AnswerSink for IndexMapper<'_> {
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
        if let Some(index) = self.indices.get(index) {
            self.sink.answered(*index, answer);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }
}

/// Answers a subset of questions; `indices` are their indices for `sink`. Does
/// not call the backend if the subset is empty.
pub(super) fn answer_subset(
    backend: &mut dyn Backend,
    subset: &[Question],
    indices: &[usize],
    sink: &mut dyn AnswerSink,
) -> Result<(), BackendError> {
    match subset.is_empty() {
        true => Ok(()),
        false => backend.answer(subset, &mut IndexMapper { indices, sink }),
    }
}
