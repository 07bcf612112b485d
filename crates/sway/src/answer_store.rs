//! Answers received so far.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use crate::answer::{Answer, CompletionScore, Distribution, Divergence, Rolling};
use crate::error::QueryError;
use crate::prompt::Prompt;
use crate::question::{Query, Question};
use crate::view::View;

/// Answers received so far.
///
/// A lookup that fails records its question, so that all missing answers can be
/// requested from the backend in one batch.
///
/// ```
/// use weightloom_sway::{Answer, AnswerStore, Missing, View};
///
/// let mut answers = AnswerStore::new();
/// assert_eq!(answers.generation(&View::Tuned, "Once", 8), Err(Missing::Pending));
/// let question = answers.take_missing().remove(0);
/// answers.insert(question, Ok(Answer::Text(" upon a time".to_owned())));
/// assert_eq!(answers.generation(&View::Tuned, "Once", 8), Ok(" upon a time"));
/// ```
#[derive(Debug, Default)]
pub struct AnswerStore {
    answers: HashMap<Question, Result<Answer, QueryError>>,
    missing: RefCell<BTreeSet<Question>>,
}

/// Why an answer is not available.
#[derive(Clone, Debug, PartialEq)]
pub enum Missing {
    /// The question has not been asked; the store has recorded it.
    Pending,
    /// The backend could not answer the question.
    Failed(QueryError),
}

impl AnswerStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores the answer to a question.
    pub fn insert(&mut self, question: Question, answer: Result<Answer, QueryError>) {
        self.missing.get_mut().remove(&question);
        self.answers.insert(question, answer);
    }

    /// Returns the questions looked up without an answer since the last call.
    pub fn take_missing(&self) -> Vec<Question> {
        self.missing.take().into_iter().collect()
    }

    /// Looks up an answer, and records the question if there is none.
    pub fn get(&self, question: Question) -> Result<&Answer, Missing> {
        match self.answers.get(&question) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(Missing::Failed(error.clone())),
            None => {
                self.missing.borrow_mut().insert(question);
                Err(Missing::Pending)
            }
        }
    }

    /// The `top_k` most likely next tokens.
    pub fn next_token(
        &self,
        view: &View,
        prompt: impl Into<Prompt>,
        top_k: usize,
    ) -> Result<&Distribution, Missing> {
        match self.get(Question::new(view, Query::Next { prompt: prompt.into(), top_k }))? {
            Answer::Distribution(found) => Ok(found),
            _ => Err(wrong_kind("a distribution")),
        }
    }

    /// Divergence of the next-token distributions of two views.
    pub fn divergence(
        &self,
        view: &View,
        from: &View,
        prompt: impl Into<Prompt>,
    ) -> Result<Divergence, Missing> {
        let query = Query::Divergence { prompt: prompt.into(), from: from.clone() };
        match self.get(Question::new(view, query))? {
            Answer::Divergence(found) => Ok(*found),
            _ => Err(wrong_kind("a divergence")),
        }
    }

    /// Log-likelihood of a completion.
    pub fn completion(
        &self,
        view: &View,
        prompt: impl Into<Prompt>,
        completion: &str,
    ) -> Result<CompletionScore, Missing> {
        let query = Query::Completion { prompt: prompt.into(), completion: completion.to_owned() };
        match self.get(Question::new(view, query))? {
            Answer::Completion(found) => Ok(*found),
            _ => Err(wrong_kind("a score")),
        }
    }

    /// Log-likelihood of every token of a text.
    pub fn rolling(&self, view: &View, text: &str) -> Result<&Rolling, Missing> {
        match self.get(Question::new(view, Query::Text { text: text.to_owned() }))? {
            Answer::Rolling(found) => Ok(found),
            _ => Err(wrong_kind("scores")),
        }
    }

    /// Greedy continuation of a prompt.
    pub fn generation(
        &self,
        view: &View,
        prompt: impl Into<Prompt>,
        max_new_tokens: usize,
    ) -> Result<&str, Missing> {
        let query = Query::Generate { prompt: prompt.into(), max_new_tokens };
        self.text(Question::new(view, query))
    }

    /// A text, by a query that is answered by one.
    pub(crate) fn text_of(&self, view: &View, query: Query) -> Result<&str, Missing> {
        self.text(Question::new(view, query))
    }

    /// Embedding of a text.
    pub fn embedding(&self, text: &str) -> Result<&[f32], Missing> {
        match self.get(Question::new(&View::Base, Query::Embedding { text: text.to_owned() }))? {
            Answer::Embedding(found) => Ok(found),
            _ => Err(wrong_kind("a vector")),
        }
    }

    /// Neutral text of about this many tokens.
    pub fn filler(&self, tokens: usize) -> Result<&str, Missing> {
        self.text(Question::new(&View::Base, Query::Filler { tokens }))
    }

    fn text(&self, question: Question) -> Result<&str, Missing> {
        match self.get(question)? {
            Answer::Text(found) => Ok(found),
            _ => Err(wrong_kind("a text")),
        }
    }

    /// Collects several lookups.
    ///
    /// Every lookup runs even after one has failed, so that all missing
    /// questions are recorded at once. [`Missing::Pending`] takes precedence;
    /// otherwise the first failure is returned.
    pub fn all<T>(lookups: impl IntoIterator<Item = Result<T, Missing>>) -> Result<Vec<T>, Missing> {
        let mut found = Vec::new();
        let mut failed = None;
        let mut pending = false;
        for lookup in lookups {
            match lookup {
                Ok(value) => found.push(value),
                Err(Missing::Pending) => pending = true,
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        match failed {
            _ if pending => Err(Missing::Pending),
            Some(failure) => Err(failure),
            None => Ok(found),
        }
    }
}

fn wrong_kind(expected: &str) -> Missing {
    Missing::Failed(QueryError::WrongKind { expected: expected.to_owned() })
}
