//! Some of the questions, handed on to somebody else.

use super::{Backend, Watch};
use crate::answer::Answer;
use crate::error::{AskError, SwayError};
use crate::question::Question;

/// Tells answers under the places that the caller knows.
struct Placed<'a> {
    places: &'a [usize],
    watch: &'a mut dyn Watch,
}

impl Watch for Placed<'_> {
    fn answered(&mut self, place: usize, answer: Result<Answer, AskError>) {
        if let Some(place) = self.places.get(place) {
            self.watch.answered(*place, answer);
        }
    }
}

/// Asks a backend the questions at some places, if there are any.
pub(super) fn ask_some(
    backend: &mut dyn Backend,
    questions: &[Question],
    places: &[usize],
    watch: &mut dyn Watch,
) -> Result<(), SwayError> {
    if places.is_empty() {
        return Ok(());
    }
    let part: Vec<Question> = places.iter().map(|place| questions[*place].clone()).collect();
    backend.answer(&part, &mut Placed { places, watch })
}
