//! Questions that no probe asks: from kept answers, then from the backend.

use crate::answer::Answer;
use crate::backend::{Backend, Watch};
use crate::book::Book;
use crate::cache::Cache;
use crate::error::{AskError, SwayError};
use crate::question::Question;
use crate::runner::{Observer, Phase};

/// Asks questions and writes the answers into a book. What is kept already is
/// not asked again; what is new is kept.
pub fn inquire(
    questions: &[Question],
    backend: &mut dyn Backend,
    mut cache: Option<&mut Cache>,
    observer: &mut dyn Observer,
) -> Result<Book, SwayError> {
    let mut book = Book::new();
    let mut open = Vec::new();
    for question in questions {
        match cache.as_deref().and_then(|cache| cache.get(question)) {
            Some(answer) => book.write(question.clone(), answer.clone()),
            None => open.push(question.clone()),
        }
    }
    if open.is_empty() {
        return Ok(book);
    }
    let kept = questions.len() - open.len();
    observer.phase(Phase::Asking { round: 0, questions: open.len(), kept });
    let mut writer = Writer { questions: &open, done: 0, book: &mut book, cache: cache.take(), observer };
    backend.answer(&open, &mut writer)?;
    Ok(book)
}

struct Writer<'a> {
    questions: &'a [Question],
    done: usize,
    book: &'a mut Book,
    cache: Option<&'a mut Cache>,
    observer: &'a mut dyn Observer,
}

impl Watch for Writer<'_> {
    fn answered(&mut self, place: usize, answer: Result<Answer, AskError>) {
        let Some(question) = self.questions.get(place) else { return };
        if let Some(cache) = &mut self.cache
            && let Err(error) = cache.put(question, &answer)
        {
            self.observer.note(&error.to_string());
            self.cache = None;
        }
        self.book.write(question.clone(), answer);
        self.done += 1;
        self.observer.answered(self.done, self.questions.len());
    }
}
