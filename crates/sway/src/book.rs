//! What was answered so far.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use crate::answer::{Answer, CompletionScore, Distribution, Divergence, Rolling};
use crate::error::AskError;
use crate::question::{Ask, Question};
use crate::view::View;

/// What was answered so far, and what was looked for in vain.
#[derive(Debug, Default)]
pub struct Book {
    answers: HashMap<Question, Result<Answer, AskError>>,
    wanted: RefCell<BTreeSet<Question>>,
}

/// Why a probe cannot go on reading.
#[derive(Clone, Debug, PartialEq)]
pub enum Missing {
    /// The question was noted and will be asked.
    Yet,
    /// It was asked, and there is no answer.
    Failed(AskError),
}

impl Book {
    /// An empty book.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes an answer down.
    pub fn write(&mut self, question: Question, answer: Result<Answer, AskError>) {
        self.wanted.get_mut().remove(&question);
        self.answers.insert(question, answer);
    }

    /// What was looked for in vain since the last call.
    pub fn take_wanted(&mut self) -> Vec<Question> {
        std::mem::take(self.wanted.get_mut()).into_iter().collect()
    }

    /// The same as [`Book::take_wanted`], for one who only reads in the book.
    pub(crate) fn wanted_since(&self) -> Vec<Question> {
        std::mem::take(&mut *self.wanted.borrow_mut()).into_iter().collect()
    }

    /// The answer to a question. One that is not there is noted, to be asked.
    pub fn look_up(&self, question: Question) -> Result<&Answer, Missing> {
        match self.answers.get(&question) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(Missing::Failed(error.clone())),
            None => {
                self.wanted.borrow_mut().insert(question);
                Err(Missing::Yet)
            }
        }
    }

    fn mismatch(question: &str) -> Missing {
        Missing::Failed(AskError::Mismatch { asked: question.to_owned() })
    }

    /// Which tokens come next.
    pub fn next(&self, view: &View, prompt: &str, top: usize) -> Result<&Distribution, Missing> {
        let ask = Ask::Next { prompt: prompt.to_owned(), keep: crate::Keep::Top(top) };
        match self.look_up(Question::new(view, ask))? {
            Answer::Distribution(found) => Ok(found),
            _ => Err(Self::mismatch("a distribution")),
        }
    }

    /// How far two views are apart behind a text.
    pub fn divergence(&self, view: &View, from: &View, prompt: &str) -> Result<Divergence, Missing> {
        let ask = Ask::Divergence { prompt: prompt.to_owned(), from: from.clone() };
        match self.look_up(Question::new(view, ask))? {
            Answer::Divergence(found) => Ok(*found),
            _ => Err(Self::mismatch("a divergence")),
        }
    }

    /// How likely a text is behind another.
    pub fn completion(
        &self,
        view: &View,
        prompt: &str,
        completion: &str,
    ) -> Result<CompletionScore, Missing> {
        let ask = Ask::Completion { prompt: prompt.to_owned(), completion: completion.to_owned() };
        match self.look_up(Question::new(view, ask))? {
            Answer::Completion(found) => Ok(*found),
            _ => Err(Self::mismatch("a score")),
        }
    }

    /// How likely each token of a text is.
    pub fn text(&self, view: &View, text: &str) -> Result<&Rolling, Missing> {
        match self.look_up(Question::new(view, Ask::Text { text: text.to_owned() }))? {
            Answer::Rolling(found) => Ok(found),
            _ => Err(Self::mismatch("scores")),
        }
    }

    /// How a view writes on.
    pub fn writing(&self, view: &View, prompt: &str, max_new_tokens: usize) -> Result<&str, Missing> {
        let ask = Ask::Writing { prompt: prompt.to_owned(), max_new_tokens };
        match self.look_up(Question::new(view, ask))? {
            Answer::Text(found) => Ok(found),
            _ => Err(Self::mismatch("a text")),
        }
    }

    /// A vector for what a text means.
    pub fn meaning(&self, text: &str) -> Result<&[f32], Missing> {
        match self.look_up(Question::new(&View::Base, Ask::Meaning { text: text.to_owned() }))? {
            Answer::Meaning(found) => Ok(found),
            _ => Err(Self::mismatch("a vector")),
        }
    }

    /// A text of so many tokens that says nothing.
    pub fn filler(&self, tokens: usize) -> Result<&str, Missing> {
        match self.look_up(Question::new(&View::Base, Ask::Filler { tokens }))? {
            Answer::Text(found) => Ok(found),
            _ => Err(Self::mismatch("a text")),
        }
    }

    /// All of some readings. Each is tried, so that all that is missing is
    /// noted at once; the first failure is told.
    pub fn all<T>(readings: impl IntoIterator<Item = Result<T, Missing>>) -> Result<Vec<T>, Missing> {
        let mut found = Vec::new();
        let mut failed = None;
        let mut yet = false;
        for reading in readings {
            match reading {
                Ok(value) => found.push(value),
                Err(Missing::Yet) => yet = true,
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        match failed {
            _ if yet => Err(Missing::Yet),
            Some(failure) => Err(failure),
            None => Ok(found),
        }
    }
}
