//! Distinct questions of a batch, each answered once.

use std::collections::BTreeMap;

use super::AnswerSink;
use crate::answer::Answer;
use crate::error::QueryError;
use crate::question::Question;

/// The distinct questions of a batch, each with the indices of its duplicates.
pub(super) struct DistinctQuestions<'a>(Vec<(&'a Question, Vec<usize>)>);

impl<'a> DistinctQuestions<'a> {
    pub(super) fn of(questions: &'a [Question]) -> Self {
        let mut distinct: BTreeMap<&Question, Vec<usize>> = BTreeMap::new();
        for (index, question) in questions.iter().enumerate() {
            distinct.entry(question).or_default().push(index);
        }
        Self(distinct.into_iter().collect())
    }

    /// The questions with their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &'a Question)> {
        self.0.iter().enumerate().map(|(index, (question, _))| (index, *question))
    }

    /// A sink of answers to the distinct questions.
    pub(super) fn sink<'s>(&'s self, sink: &'s mut dyn AnswerSink) -> impl AnswerSink + 's {
        Duplicates { indices: &self.0, sink }
    }
}

/// Passes the answer to a distinct question on to all its duplicates.
struct Duplicates<'a> {
    indices: &'a [(&'a Question, Vec<usize>)],
    sink: &'a mut dyn AnswerSink,
}

impl AnswerSink for Duplicates<'_> {
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
        for &index in &self.indices[index].1 {
            self.sink.answered(index, answer.clone());
        }
    }

    fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }
}
