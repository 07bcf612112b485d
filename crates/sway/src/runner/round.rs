//! One round of questions: answered from the cache, then by the backend.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::cancel::CancelFlag;
use super::counters::Counters;
use super::observer::{Observer, Phase, TraceEvent};
use crate::answer::Answer;
use crate::answer_store::AnswerStore;
use crate::backend::{AnswerSink, Backend, Capability};
use crate::cache::Cache;
use crate::error::{BackendError, QueryError};
use crate::question::Question;

/// Answers questions that no probe asks, from the cache or by the backend.
/// New answers are cached.
pub fn answer_all(
    questions: &[Question],
    backend: &mut dyn Backend,
    cache: Option<&mut Cache>,
    observer: &mut dyn Observer,
) -> Result<AnswerStore, BackendError> {
    let mut wanted = PendingQuestions::default();
    for question in questions {
        wanted.questions.entry(question.clone()).or_default();
    }
    let mut rounds = Rounds::new(backend, cache, None);
    rounds.preflight = Preflight::Done;
    let mut answers = AnswerStore::new();
    match rounds.ask(&wanted, &[], &mut answers, observer)? {
        Ok(_) => Ok(answers),
        Err(error) => Err(error),
    }
}

/// Missing questions, each with the indices of the entries that asked it.
#[derive(Debug, Default)]
pub(super) struct PendingQuestions {
    questions: BTreeMap<Question, Vec<usize>>,
}

impl PendingQuestions {
    pub(super) fn add(&mut self, entry: usize, questions: impl IntoIterator<Item = Question>) {
        for question in questions {
            self.questions.entry(question).or_default().push(entry);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }
}

/// Whether the backend passed its preflight check.
#[derive(Clone, Copy, PartialEq)]
enum Preflight {
    ToDo,
    Done,
}

/// Answers rounds of questions and counts them.
pub(super) struct Rounds<'a> {
    backend: &'a mut dyn Backend,
    cache: Option<&'a mut Cache>,
    cancel: Option<&'a CancelFlag>,
    preflight: Preflight,
    pub(super) counters: Counters,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(
        backend: &'a mut dyn Backend,
        cache: Option<&'a mut Cache>,
        cancel: Option<&'a CancelFlag>,
    ) -> Self {
        let has_preflight = backend.description().capabilities.contains(&Capability::Preflight);
        let preflight = if has_preflight { Preflight::ToDo } else { Preflight::Done };
        Self { backend, cache, cancel, preflight, counters: Counters::default() }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelFlag::is_cancelled)
    }

    /// Answers all questions and returns the seconds spent on each
    /// of the entries in `names`. The inner error is that of the preflight
    /// check, which precedes the first question the cache cannot answer.
    pub(super) fn ask(
        &mut self,
        wanted: &PendingQuestions,
        names: &[&str],
        answers: &mut AnswerStore,
        observer: &mut dyn Observer,
    ) -> Result<Result<Vec<f64>, BackendError>, BackendError> {
        let mut questions = Vec::new();
        let mut askers = Vec::new();
        let mut cached = 0;
        for (question, entries) in &wanted.questions {
            self.counters.questions += 1;
            match self.cache.as_deref().and_then(|cache| cache.get(question)) {
                Some(answer) => {
                    answers.insert(question.clone(), answer.clone());
                    cached += 1;
                    self.counters.kept += 1;
                    for entry in entries {
                        self.counters.hit();
                        observer.event(&TraceEvent::of(question, now(), Some(names[*entry])));
                    }
                }
                None => {
                    questions.push(question.clone());
                    askers.push(entries.as_slice());
                }
            }
        }
        let mut seconds = vec![0.0; names.len()];
        if questions.is_empty() {
            return Ok(Ok(seconds));
        }
        if self.preflight == Preflight::ToDo {
            observer.phase(Phase::Preflight);
            if let Err(error) = self.backend.preflight() {
                return Ok(Err(error));
            }
            self.preflight = Preflight::Done;
        }
        observer.phase(Phase::Asking { round: self.counters.rounds, questions: questions.len(), cached });
        self.counters.rounds += 1;
        let started = Instant::now();
        let mut recorder = AnswerRecorder {
            questions: &questions,
            askers: &askers,
            names,
            answered: vec![false; questions.len()],
            done: 0,
            last: started,
            cache: self.cache.as_deref_mut(),
            cancel: self.cancel,
            counters: &mut self.counters,
            seconds: &mut seconds,
            answers,
            observer,
        };
        let outcome = self.backend.answer(&questions, &mut recorder);
        if outcome.is_ok() && !recorder.is_cancelled() {
            recorder.fail_unanswered();
        }
        self.counters.scoring_wall_s += started.elapsed().as_secs_f64();
        outcome?;
        Ok(Ok(seconds))
    }
}

/// Stores answers as they arrive.
struct AnswerRecorder<'a> {
    questions: &'a [Question],
    askers: &'a [&'a [usize]],
    names: &'a [&'a str],
    answered: Vec<bool>,
    done: usize,
    last: Instant,
    cache: Option<&'a mut Cache>,
    cancel: Option<&'a CancelFlag>,
    counters: &'a mut Counters,
    seconds: &'a mut [f64],
    answers: &'a mut AnswerStore,
    observer: &'a mut dyn Observer,
}

impl AnswerRecorder<'_> {
    /// Marks every unanswered question as failed: asking again might never end.
    fn fail_unanswered(&mut self) {
        for index in 0..self.questions.len() {
            if !self.answered[index] {
                let message = format!(
                    "the backend did not answer a question to the view `{}`",
                    self.questions[index].view
                );
                self.answered(index, Err(QueryError::Failed { message }));
            }
        }
    }
}

impl AnswerSink for AnswerRecorder<'_> {
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
        let Some(question) = self.questions.get(index) else { return };
        if std::mem::replace(&mut self.answered[index], true) {
            return;
        }
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        let askers = self.askers[index];
        for (position, entry) in askers.iter().enumerate() {
            self.seconds[*entry] += seconds / askers.len() as f64;
            let mut event = TraceEvent::of(question, now(), Some(self.names[*entry]));
            if position == 0 {
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

    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelFlag::is_cancelled)
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
