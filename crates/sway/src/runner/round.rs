//! One round of questions: from kept answers, then from the backend.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::counters::Counters;
use super::observer::{Observer, Phase, TraceEvent};
use super::{Progress, RunError};
use crate::answer::Answer;
use crate::answer_store::AnswerStore;
use crate::backend::{AnswerSink, Backend, Capability};
use crate::cache::Cache;
use crate::error::{QueryError, SwayError};
use crate::question::Question;

/// Questions, each with the entries that asked it.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    questions: BTreeMap<Question, Vec<usize>>,
}

impl Wanted {
    pub(super) fn add(&mut self, entry: usize, questions: impl IntoIterator<Item = Question>) {
        for question in questions {
            self.questions.entry(question).or_default().push(entry);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }
}

/// Whether the backend was tried.
#[derive(Clone, Copy, PartialEq)]
enum Preflight {
    ToDo,
    Done,
}

/// Asks questions, and counts.
pub(super) struct Asker<'a> {
    backend: &'a mut dyn Backend,
    cache: Option<&'a mut Cache>,
    preflight: Preflight,
    pub(super) counters: Counters,
}

impl<'a> Asker<'a> {
    pub(super) fn new(backend: &'a mut dyn Backend, cache: Option<&'a mut Cache>) -> Self {
        let able = backend.description().capabilities.contains(&Capability::Preflight);
        let preflight = if able { Preflight::ToDo } else { Preflight::Done };
        Self { backend, cache, preflight, counters: Counters::default() }
    }

    /// Answers all questions in the answers. The inner error is that of the
    /// preflight, which comes before the first question that nothing answers.
    pub(super) fn ask(
        &mut self,
        wanted: &Wanted,
        progress: &mut [Progress<'_>],
        answers: &mut AnswerStore,
        observer: &mut dyn Observer,
    ) -> Result<Result<(), SwayError>, RunError> {
        let mut questions = Vec::new();
        let mut askers = Vec::new();
        let mut kept = 0;
        for (question, entries) in &wanted.questions {
            self.counters.questions += 1;
            match self.cache.as_deref().and_then(|cache| cache.get(question)) {
                Some(answer) => {
                    answers.insert(question.clone(), answer.clone());
                    kept += 1;
                    self.counters.kept += 1;
                    for entry in entries {
                        self.counters.hit();
                        observer.event(&TraceEvent::of(question, now(), Some(&progress[*entry].entry.name)));
                    }
                }
                None => {
                    questions.push(question.clone());
                    askers.push(entries.as_slice());
                }
            }
        }
        if questions.is_empty() {
            return Ok(Ok(()));
        }
        if self.preflight == Preflight::ToDo {
            observer.phase(Phase::Preflight);
            if let Err(error) = self.backend.preflight() {
                return Ok(Err(error));
            }
            self.preflight = Preflight::Done;
        }
        observer.phase(Phase::Asking { round: self.counters.rounds, questions: questions.len(), kept });
        self.counters.rounds += 1;
        let started = Instant::now();
        let mut writer = Writer {
            questions: &questions,
            askers: &askers,
            answered: vec![false; questions.len()],
            done: 0,
            last: started,
            cache: self.cache.as_deref_mut(),
            counters: &mut self.counters,
            progress,
            answers,
            observer,
        };
        let outcome = self.backend.answer(&questions, &mut writer);
        if outcome.is_ok() {
            writer.close();
        }
        self.counters.scoring_wall_s += started.elapsed().as_secs_f64();
        outcome?;
        Ok(Ok(()))
    }
}

/// Writes answers down as they come.
struct Writer<'a, 'b> {
    questions: &'a [Question],
    askers: &'a [&'a [usize]],
    answered: Vec<bool>,
    done: usize,
    last: Instant,
    cache: Option<&'a mut Cache>,
    counters: &'a mut Counters,
    progress: &'a mut [Progress<'b>],
    answers: &'a mut AnswerStore,
    observer: &'a mut dyn Observer,
}

impl Writer<'_, '_> {
    /// What was not answered by the end has no answer: asking again and again
    /// would never end.
    fn close(&mut self) {
        for place in 0..self.questions.len() {
            if !self.answered[place] {
                let message = format!("no answer came from {}", self.questions[place].view);
                self.answered(place, Err(QueryError::Failed { message }));
            }
        }
    }
}

impl AnswerSink for Writer<'_, '_> {
    fn answered(&mut self, place: usize, answer: Result<Answer, QueryError>) {
        let Some(question) = self.questions.get(place) else { return };
        if std::mem::replace(&mut self.answered[place], true) {
            return;
        }
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        let askers = self.askers[place];
        for (turn, entry) in askers.iter().enumerate() {
            let asker = &mut self.progress[*entry];
            asker.seconds += seconds / askers.len() as f64;
            let mut event = TraceEvent::of(question, now(), Some(&asker.entry.name));
            if turn == 0 {
                (event.wall_ms, event.hit) = (seconds * 1000.0, false);
                self.counters.miss();
            } else {
                self.counters.hit();
            }
            self.observer.event(&event);
        }
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

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
