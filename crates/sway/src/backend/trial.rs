//! A first question, to see whether a backend gives numbers at all.

use super::{Backend, Watch};
use crate::answer::Answer;
use crate::error::{AskError, SwayError};
use crate::question::{Ask, Keep, Question};
use crate::view::View;

/// The first thing that went wrong.
struct First(Option<AskError>);

impl Watch for First {
    fn answered(&mut self, _: usize, answer: Result<Answer, AskError>) {
        let odd = match answer {
            Err(error) => Some(error),
            Ok(Answer::Distribution(found)) if found.tail.is_some_and(|tail| !tail.is_finite()) => {
                Some(AskError::Mismatch { asked: "a probability of all other tokens".to_owned() })
            }
            Ok(_) => None,
        };
        self.0 = self.0.take().or(odd);
    }
}

/// Asks views what comes after a word, and tells the first thing that is wrong
/// with the answers.
pub(super) fn first_fault(
    backend: &mut dyn Backend,
    views: &[View],
    top: usize,
) -> Result<Option<AskError>, SwayError> {
    let ask = Ask::Next { prompt: "hello".to_owned(), keep: Keep::Top(top) };
    let questions: Vec<Question> = views.iter().map(|view| Question::new(view, ask.clone())).collect();
    let mut first = First(None);
    backend.answer(&questions, &mut first)?;
    Ok(first.0)
}
