//! State of a response while the model generates it.

use std::sync::Arc;

use weightloom_hub::{EosHandling, TextGenerator};
use weightloom_nn::{FinishReason, TokenLogprobs};

use crate::choice::{Choice, Delta, Logprobs};
use crate::events::Event;
use crate::request::CompletionRequest;
use crate::request_log::RequestLog;

/// A response in progress.
pub(crate) struct ResponseState {
    request: Arc<CompletionRequest>,
    choices: Vec<Choice>,
    finished: Vec<bool>,
    started: bool,
    log: Option<RequestLog>,
}

/// Token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
}

/// Whether the response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Running,
    Done,
}

/// Records the tokens of a response that has ended, whether complete or not.
impl Drop for ResponseState {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            log.set_usage(self.usage());
        }
    }
}

impl ResponseState {
    pub(crate) fn new(
        request: Arc<CompletionRequest>,
        generator: &TextGenerator,
        log: Option<RequestLog>,
    ) -> Self {
        let eos: Arc<[u32]> = match request.params.stop.eos {
            EosHandling::Stop => generator.eos_tokens().into(),
            EosHandling::Ignore => Arc::new([]),
        };
        let logprobs = if request.top_logprobs.is_some() { Logprobs::Include } else { Logprobs::Omit };
        let choice = |row| {
            Choice::new(&generator.tokenizer, &request.prompt_of(row).tokens, Arc::clone(&eos), logprobs)
        };
        let choices: Vec<Choice> = (0..request.rows()).map(choice).collect();
        let finished = vec![false; choices.len()];
        Self { request, choices, finished, started: false, log }
    }

    /// Applies an event and returns the new content of each row.
    pub(crate) fn apply(&mut self, event: Event) -> (Vec<(usize, Delta)>, Progress) {
        let mut deltas = Vec::new();
        let event = match event {
            Event::Scores(scores) => {
                self.start(&scores, &mut deltas);
                return (deltas, Progress::Running);
            }
            other => other,
        };
        self.start(&[], &mut deltas);
        match event {
            Event::Token(token) => {
                let row = token.row;
                let delta = self.choices[row].push(token);
                self.finished[row] |= delta.finish.is_some();
                deltas.push((row, delta));
                (deltas, Progress::Running)
            }
            _ => {
                // Rows without new tokens.
                let open = self.finished.iter().enumerate().filter(|(_, finished)| !**finished);
                let end = |(row, _)| (row, Delta { finish: Some(FinishReason::Length), ..Delta::default() });
                deltas.extend(open.map(end));
                (deltas, Progress::Done)
            }
        }
    }

    /// Echoes the prompts if requested, once.
    fn start(&mut self, scores: &[Vec<TokenLogprobs>], deltas: &mut Vec<(usize, Delta)>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        for (row, choice) in self.choices.iter_mut().enumerate() {
            let scores = scores.get(row / self.request.params.n).map_or(&[][..], Vec::as_slice);
            let delta = choice.echo(self.request.prompt_of(row), scores);
            if !delta.is_empty() {
                deltas.push((row, delta));
            }
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.choices.len()
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt: self.request.prompts.iter().map(|prompt| prompt.tokens.len()).sum(),
            completion: self.choices.iter().map(|choice| choice.tokens).sum(),
        }
    }
}
