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

/// Asks a backend some of the questions, if there are any; the caller knows each
/// by its place.
pub(super) fn ask_some(
    backend: &mut dyn Backend,
    some: &[Question],
    places: &[usize],
    watch: &mut dyn Watch,
) -> Result<(), SwayError> {
    match some.is_empty() {
        true => Ok(()),
        false => backend.answer(some, &mut Placed { places, watch }),
    }
}
