//! Hearing of a run while it goes on.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde::{Deserialize, Serialize};

use crate::question::{Query, Question};
use crate::record::Record;

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Probes read and judge.
    Reading,
    /// The backend is tried.
    Preflight,
    /// The backend is asked.
    Asking {
        /// How often it was asked before.
        round: u64,
        /// How many questions it has to answer.
        questions: usize,
        /// How many more had their answers kept by an earlier run.
        kept: usize,
    },
}

/// Hears of a run while it goes on.
pub trait Observer {
    /// A phase begins.
    fn phase(&mut self, _phase: Phase) {}
    /// So many questions of this round were answered.
    fn answered(&mut self, _done: usize, _of: usize) {}
    /// An answer was read.
    fn event(&mut self, _event: &TraceEvent) {}
    /// An entry was judged.
    fn judged(&mut self, _record: &Record) {}
    /// Something that a reader should know and that stops nothing.
    fn note(&mut self, _text: &str) {}
    /// New answers are cached, so that an interrupted run can resume.
    fn caching(&mut self) {}
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// When, in seconds since 1970.
    pub ts: f64,
    /// The entry that asked; none for nobody's question.
    pub probe: Option<String>,
    /// The view that was asked.
    pub view_id: String,
    /// The first twelve digits of the text's SHA-1.
    pub prompt_hash: String,
    /// How many tokens were asked for, or 0.
    pub top_k: usize,
    /// What was asked.
    pub op: String,
    /// How long it took, in milliseconds.
    pub wall_ms: f64,
    /// Whether the answer was there already.
    pub hit: bool,
}

impl TraceEvent {
    pub(super) fn of(question: &Question, ts: f64, probe: Option<&str>) -> Self {
        let (op, text, top_k) = match &question.query {
            Query::Next { prompt, top_k } => ("next_token_dist", prompt.clone(), *top_k),
            Query::Divergence { prompt, .. } => ("divergence", prompt.clone(), 0),
            Query::Completion { prompt, completion } => ("logprob_of", format!("{prompt}\0{completion}"), 0),
            Query::Text { text } => ("rolling_logprob", text.clone(), 0),
            Query::Generate { prompt, .. } => ("generate", prompt.clone(), 0),
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

/// The first twelve digits of a text's SHA-1.
pub fn prompt_hash(text: &str) -> String {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    hash.as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;

    #[test]
    fn hashes_are_those_of_dlm_sway() {
        assert_eq!(prompt_hash("hello"), "aaf4c61ddcc5");
    }

    #[test]
    fn completions_are_hashed_with_their_prompts() {
        let ask = Query::Completion { prompt: "a".to_owned(), completion: "b".to_owned() };
        let event = TraceEvent::of(&Question::new(&View::Tuned, ask), 0.0, Some("p"));
        assert_eq!(event.prompt_hash, prompt_hash("a\0b"));
        assert_eq!((event.op.as_str(), event.view_id.as_str(), event.top_k), ("logprob_of", "ft", 0));
    }
}
