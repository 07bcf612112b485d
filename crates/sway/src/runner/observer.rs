//! Progress of a run.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde::{Deserialize, Serialize};

use crate::question::{Query, Question};
use crate::record::Record;

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Probes evaluate answers.
    Probing,
    /// The backend checks itself.
    Preflight,
    /// The backend answers questions.
    Asking {
        /// Index of the batch.
        round: u64,
        /// Size of the batch.
        questions: usize,
        /// Further questions that the cache answered.
        cached: usize,
    },
}

/// Receives the progress of a run; every method does nothing by default.
pub trait Observer {
    /// A phase starts.
    fn phase(&mut self, _phase: Phase) {}
    /// `done` questions of a batch are answered.
    fn answered(&mut self, _done: usize, _of: usize) {}
    /// An answer was looked up.
    fn event(&mut self, _event: &TraceEvent) {}
    /// An entry has a verdict.
    fn judged(&mut self, _record: &Record) {}
    /// A warning.
    fn note(&mut self, _text: &str) {}
    /// New answers are cached, so that an interrupted run can resume.
    fn caching(&mut self) {}
}

/// Ignores all progress.
impl Observer for () {}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// Unix time, in seconds.
    pub ts: f64,
    /// The entry that asked.
    pub probe: Option<String>,
    /// The queried view.
    pub view_id: String,
    /// [`prompt_hash`] of the text.
    pub prompt_hash: String,
    /// Number of tokens requested, or 0.
    pub top_k: usize,
    /// The query, named as in dlm-sway.
    pub op: String,
    /// Time taken, in milliseconds.
    pub wall_ms: f64,
    /// Whether the answer was available without the backend.
    pub hit: bool,
}

impl TraceEvent {
    pub(super) fn of(question: &Question, ts: f64, probe: Option<&str>) -> Self {
        let (op, text, top_k) = match &question.query {
            Query::Next { prompt, top_k } => ("next_token_dist", prompt.to_string(), *top_k),
            Query::Divergence { prompt, .. } => ("divergence", prompt.to_string(), 0),
            Query::Completion { prompt, completion } => ("logprob_of", format!("{prompt}\0{completion}"), 0),
            Query::Text { text } => ("rolling_logprob", text.clone(), 0),
            Query::Generate { prompt, .. } | Query::Sample { prompt, .. } => {
                ("generate", prompt.to_string(), 0)
            }
            Query::Embedding { text } => ("embed", text.clone(), 0),
            Query::Filler { tokens } => ("filler", tokens.to_string(), 0),
        };
        Self {
            ts,
            probe: probe.map(str::to_owned),
            view_id: question.view.to_string(),
            prompt_hash: prompt_hash(&text),
            top_k,
            op: op.to_owned(),
            wall_ms: 0.0,
            hit: true,
        }
    }
}

/// The first twelve hexadecimal digits of a text's SHA-1.
pub fn prompt_hash(text: &str) -> String {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    hash.as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;

    #[test]
    fn hashes_match_dlm_sway() {
        assert_eq!(prompt_hash("hello"), "aaf4c61ddcc5");
    }

    #[test]
    fn completions_are_hashed_with_their_prompts() {
        let ask = Query::Completion { prompt: "a".into(), completion: "b".to_owned() };
        let event = TraceEvent::of(&Question::new(&View::Tuned, ask), 0.0, Some("p"));
        assert_eq!(event.prompt_hash, prompt_hash("a\0b"));
        assert_eq!((event.op.as_str(), event.view_id.as_str(), event.top_k), ("logprob_of", "ft", 0));
    }
}
