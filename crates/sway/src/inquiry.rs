//! Questions that no probe asks: from kept answers, then from the backend.

use crate::answer::Answer;
use crate::answer_store::AnswerStore;
use crate::backend::{AnswerSink, Backend};
use crate::cache::Cache;
use crate::error::{QueryError, SwayError};
use crate::question::Question;
use crate::runner::{Observer, Phase};

/// Asks questions and writes the answers into a answers. What is kept already is
/// not asked again; what is new is kept.
pub fn inquire(
    questions: &[Question],
    backend: &mut dyn Backend,
    mut cache: Option<&mut Cache>,
    observer: &mut dyn Observer,
) -> Result<AnswerStore, SwayError> {
    let mut answers = AnswerStore::new();
    let mut open = Vec::new();
    for question in questions {
        match cache.as_deref().and_then(|cache| cache.get(question)) {
            Some(answer) => answers.insert(question.clone(), answer.clone()),
            None => open.push(question.clone()),
        }
    }
    if open.is_empty() {
        return Ok(answers);
    }
    let kept = questions.len() - open.len();
    observer.phase(Phase::Asking { round: 0, questions: open.len(), kept });
    let mut writer =
        Writer { questions: &open, done: 0, answers: &mut answers, cache: cache.take(), observer };
    backend.answer(&open, &mut writer)?;
    Ok(answers)
}

struct Writer<'a> {
    questions: &'a [Question],
    done: usize,
    answers: &'a mut AnswerStore,
    cache: Option<&'a mut Cache>,
    observer: &'a mut dyn Observer,
}

impl AnswerSink for Writer<'_> {
    fn answered(&mut self, place: usize, answer: Result<Answer, QueryError>) {
        let Some(question) = self.questions.get(place) else { return };
        if let Some(cache) = &mut self.cache
            && let Err(error) = cache.put(question, &answer)
        {
            self.observer.note(&error.to_string());
            self.cache = None;
        }
        self.answers.insert(question.clone(), answer);
        self.done += 1;
        self.observer.answered(self.done, self.questions.len());
    }
}
