//! Questions divided among ranks, each with its own copy of the models.
//!
//! Rank 0 judges. It sends every batch of questions to all ranks, each answers
//! its share, and rank 0 collects the answers. An answer does not depend on the
//! batch it is in, so the report is that of one rank, bit for bit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weightloom_gang::{Gang, GangError, GangExt as _};

use super::{AnswerSink, Backend, Description};
use crate::answer::Answer;
use crate::chat::ChatSupport;
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};

/// The most questions of a rank between two collections, after which rank 0 has
/// answers to cache.
const CHUNK: usize = 256;

/// What a generated token costs, in characters of a scored text.
const GENERATED: usize = 16;

/// What rank 0 asks of all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Task {
    Answer(Vec<Question>),
    Preflight,
    Stop,
}

/// The answers of a rank, with the indices of their questions, and why it stopped.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Share {
    answers: Vec<(usize, Result<Answer, QueryError>)>,
    failure: Option<Failure>,
}

/// A [`BackendError`] on its way to rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Failure {
    backend: String,
    message: String,
    hint: Option<String>,
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Self { backend: error.backend, message: error.message, hint: error.hint }
    }
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        Self { backend: failure.backend, message: failure.message, hint: failure.hint }
    }
}

/// The backend of rank 0, which passes questions on to all ranks.
pub struct RankedBackend {
    inner: Box<dyn Backend>,
    gang: Arc<dyn Gang>,
}

impl RankedBackend {
    /// Wraps the backend of rank 0. Every other rank calls [`follow`].
    pub fn new(inner: Box<dyn Backend>, gang: Arc<dyn Gang>) -> Self {
        Self { inner, gang }
    }

    /// Releases the other ranks from [`follow`].
    pub fn finish(self) -> Result<(), BackendError> {
        self.gang.broadcast_object(Some(&Task::Stop), 0).map(drop).map_err(|error| failed(&error))
    }

    /// Sends a task to all ranks, does the part of this one, and collects the
    /// others'.
    fn run(&mut self, task: &Task, sink: &mut dyn AnswerSink) -> Result<Vec<Share>, BackendError> {
        self.gang.broadcast_object(Some(task), 0).map_err(|error| failed(&error))?;
        let share = do_share(task, &mut *self.inner, &*self.gang, Some(sink));
        let shares = self.gang.gather_objects(&share, 0).map_err(|error| failed(&error))?;
        Ok(shares.unwrap_or_default())
    }
}

/// Answers the questions that rank 0 sends, until it has finished. Called by
/// every other rank.
pub fn follow(inner: &mut dyn Backend, gang: &dyn Gang) -> Result<(), BackendError> {
    loop {
        let task: Task = gang.broadcast_object(None, 0).map_err(|error| failed(&error))?;
        if matches!(task, Task::Stop) {
            return Ok(());
        }
        let share = do_share(&task, inner, gang, None);
        gang.gather_objects(&share, 0).map_err(|error| failed(&error))?;
    }
}

fn failed(error: &GangError) -> BackendError {
    BackendError::new("ranks", error)
}

/// Collects the answers of a rank. Rank 0 passes its own on at once.
struct Collector<'a, 's> {
    indices: &'a [usize],
    share: Share,
    sink: Option<&'s mut dyn AnswerSink>,
}

impl AnswerSink for Collector<'_, '_> {
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
        let Some(index) = self.indices.get(index).copied() else { return };
        match &mut self.sink {
            Some(sink) => sink.answered(index, answer),
            None => self.share.answers.push((index, answer)),
        }
    }

    fn is_cancelled(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.is_cancelled())
    }
}

fn do_share(
    task: &Task,
    inner: &mut dyn Backend,
    gang: &dyn Gang,
    sink: Option<&mut dyn AnswerSink>,
) -> Share {
    match task {
        Task::Stop => Share::default(),
        Task::Preflight => Share { failure: inner.preflight().err().map(Failure::from), ..Share::default() },
        Task::Answer(questions) => {
            let indices = divide(questions, gang.size()).swap_remove(gang.rank());
            let own: Vec<Question> = indices.iter().map(|index| questions[*index].clone()).collect();
            let mut collector = Collector { indices: &indices, share: Share::default(), sink };
            let outcome = if own.is_empty() { Ok(()) } else { inner.answer(&own, &mut collector) };
            Share { failure: outcome.err().map(Failure::from), ..collector.share }
        }
    }
}

/// The indices of the questions of each rank. Questions about the same text stay
/// together, because the views of a text share a batch.
fn divide(questions: &[Question], ranks: usize) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<String, (usize, Vec<usize>)> = BTreeMap::new();
    for (index, question) in questions.iter().enumerate() {
        let (text, more) = match &question.query {
            Query::Next { prompt, .. } | Query::Divergence { prompt, .. } => (prompt.to_string(), 0),
            Query::Completion { prompt, completion } => (prompt.to_string(), completion.len()),
            Query::Text { text } | Query::Embedding { text } => (text.clone(), 0),
            Query::Generate { prompt, max_new_tokens } | Query::Sample { prompt, max_new_tokens, .. } => {
                (prompt.to_string(), GENERATED * max_new_tokens)
            }
            Query::Filler { .. } => (String::new(), 0),
        };
        let own = text.len() + more + 1;
        let (cost, members) = groups.entry(text).or_default();
        *cost += own;
        members.push(index);
    }
    let mut groups: Vec<(usize, Vec<usize>)> = groups.into_values().collect();
    // The most expensive first, each to the rank with the least to do.
    groups.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    let mut shares = vec![(0, Vec::new()); ranks.max(1)];
    for (cost, members) in groups {
        if let Some(share) = shares.iter_mut().min_by_key(|share| share.0) {
            share.0 += cost;
            share.1.extend(members);
        }
    }
    shares.into_iter().map(|(_, members)| members).collect()
}

impl Backend for RankedBackend {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let size = CHUNK * self.gang.size();
        for (chunk, part) in questions.chunks(size).enumerate() {
            if sink.is_cancelled() {
                return Ok(());
            }
            let mut offset = OffsetSink { offset: chunk * size, sink };
            let shares = self.run(&Task::Answer(part.to_vec()), &mut offset)?;
            let mut failure = None;
            for share in shares {
                for (index, answer) in share.answers {
                    offset.answered(index, answer);
                }
                failure = failure.or(share.failure);
            }
            if let Some(failure) = failure {
                return Err(failure.into());
            }
        }
        Ok(())
    }

    fn base_identity(&self) -> Option<String> {
        self.inner.base_identity()
    }

    fn layers(&self) -> Vec<String> {
        self.inner.layers()
    }

    fn chat_support(&self) -> ChatSupport {
        self.inner.chat_support()
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        let shares = self.run(&Task::Preflight, &mut NoAnswers)?;
        match shares.into_iter().find_map(|share| share.failure) {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }
}

/// Adds an offset to the index of each answer.
struct OffsetSink<'a> {
    offset: usize,
    sink: &'a mut dyn AnswerSink,
}

impl AnswerSink for OffsetSink<'_> {
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
        self.sink.answered(self.offset + index, answer);
    }

    fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }
}

/// For tasks without answers.
struct NoAnswers;

impl AnswerSink for NoAnswers {
    fn answered(&mut self, _index: usize, _answer: Result<Answer, QueryError>) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::path::Path;

    use weightloom_gang::{GangOptions, solo, threads};

    use super::*;
    use crate::backend::dummy::Dummy;
    use crate::backend::testing::ChatDummy;
    use crate::view::View;
    use crate::{JudgeOptions, PreparedSuite, Report, Suite, judge};

    const TEXT: &str = "
models: {base: {base: tiny}, ft: {base: tiny, adapter: out}}
suite:
  - {name: noise, kind: null_adapter, runs: 3}
  - {name: change, kind: delta_kl, prompts: [Once upon a time, The sky is, A horse]}
  - {name: knowledge, kind: calibration_drift, items_limit: 40}
  - {name: corpus, kind: external_perplexity}
";

    fn prepared() -> PreparedSuite {
        PreparedSuite::new(Suite::read(TEXT, Path::new("sway.yaml"), &|_| None).unwrap(), None).unwrap()
    }

    /// The report of a suite, and how many questions each rank answered.
    fn judged(ranks: usize, fail_after: Option<usize>) -> (Result<Report, crate::JudgeError>, Vec<usize>) {
        let prepared = prepared();
        let results = threads::run(ranks, GangOptions::default(), |gang| {
            let mut inner =
                Dummy { fail_after: fail_after.filter(|_| gang.rank() == ranks - 1), ..Dummy::default() };
            if gang.rank() > 0 {
                follow(&mut inner, &*gang).unwrap();
                return (None, inner.answered);
            }
            let mut backend = RankedBackend::new(Box::new(inner), gang);
            let report = judge(&prepared, &mut backend, &JudgeOptions::default(), &mut ());
            backend.finish().unwrap();
            (Some(report), 0)
        })
        .unwrap();
        let counts = results.iter().map(|(_, answered)| *answered).collect();
        (results.into_iter().find_map(|(report, _)| report).unwrap(), counts)
    }

    fn untimed(report: &Report) -> Vec<crate::Record> {
        let mut records = report.probes.clone();
        records.iter_mut().for_each(|record| record.duration_s = 0.0);
        records
    }

    #[test]
    fn the_report_does_not_depend_on_the_number_of_ranks() {
        let alone = judge(&prepared(), &mut Dummy::default(), &JudgeOptions::default(), &mut ()).unwrap();
        for ranks in 1..=4 {
            let (report, counts) = judged(ranks, None);
            assert_eq!(untimed(&report.unwrap()), untimed(&alone), "{ranks}");
            assert!(counts[1..].iter().all(|answered| *answered > 0), "{counts:?}");
        }
    }

    #[test]
    fn chats_are_known_on_ranks() {
        let alone = ChatDummy::default();
        let ranked = RankedBackend::new(Box::new(ChatDummy::default()), solo(GangOptions::default()));
        assert_eq!(ranked.chat_support(), alone.chat_support());
        assert_ne!(ranked.chat_support(), Dummy::default().chat_support());
    }

    #[test]
    fn a_rank_that_fails_ends_the_run_with_its_error() {
        let (report, _) = judged(3, Some(5));
        let error = report.unwrap_err().to_string();
        assert!(error.contains("dummy"), "{error}");
    }

    #[test]
    fn every_question_has_one_rank_and_texts_stay_together() {
        let ask = |view: &View, prompt: String| {
            Question::new(view, Query::Next { prompt: prompt.into(), top_k: 4 })
        };
        let questions: Vec<Question> = (0..60)
            .map(|number| {
                ask(if number % 2 == 0 { &View::Base } else { &View::Tuned }, format!("p{}", number / 2))
            })
            .collect();
        for ranks in 1..6 {
            let shares = divide(&questions, ranks);
            let mut all: Vec<usize> = shares.iter().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..60).collect::<Vec<_>>());
            for share in &shares {
                assert!(share.len().abs_diff(60 / ranks) <= 2, "{shares:?}");
                assert!(share.iter().all(|index| share.contains(&(index ^ 1))));
            }
        }
        assert_eq!(divide(&[], 3), vec![Vec::<usize>::new(); 3]);
    }
}
