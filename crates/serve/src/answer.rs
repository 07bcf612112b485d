//! All answers to a request, as they grow.

use std::sync::Arc;

use weightloom_hub::{Ends, Writer};
use weightloom_nn::{Finish, Likeliest};

use crate::ask::Ask;
use crate::choice::{Choice, Entries, Increment};
use crate::events::Event;

/// All answers to a request, as they grow.
pub(crate) struct Answer {
    ask: Arc<Ask>,
    choices: Vec<Choice>,
    /// Which of them have ended.
    finished: Vec<bool>,
    begun: bool,
}

/// How many tokens there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
}

/// Whether more will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    More,
    Nothing,
}

impl Answer {
    pub(crate) fn new(ask: Arc<Ask>, writer: &Writer) -> Self {
        let ends: Arc<[u32]> = match ask.manner.ends {
            Ends::Heeded => writer.end_tokens().into(),
            Ends::Ignored => Arc::new([]),
        };
        let entries = if ask.likeliest.is_some() { Entries::Told } else { Entries::Untold };
        let choice =
            |row| Choice::new(&writer.tokenizer, &ask.prompt_of(row).tokens, Arc::clone(&ends), entries);
        let choices: Vec<Choice> = (0..ask.rows()).map(choice).collect();
        let finished = vec![false; choices.len()];
        Self { ask, choices, finished, begun: false }
    }

    /// What is new by an event, each with the row that it belongs to.
    pub(crate) fn take(&mut self, event: Event) -> (Vec<(usize, Increment)>, Rest) {
        let mut news = Vec::new();
        let event = match event {
            Event::Scores(scores) => {
                self.begin(&scores, &mut news);
                return (news, Rest::More);
            }
            other => other,
        };
        self.begin(&[], &mut news);
        match event {
            Event::Piece(piece) => {
                let row = piece.row;
                let increment = self.choices[row].push(piece);
                self.finished[row] |= increment.finish.is_some();
                news.push((row, increment));
                (news, Rest::More)
            }
            _ => {
                // Rows of which nothing was to be written.
                let open = self.finished.iter().enumerate().filter(|(_, finished)| !**finished);
                let end =
                    |(row, _)| (row, Increment { finish: Some(Finish::Length), ..Increment::default() });
                news.extend(open.map(end));
                (news, Rest::Nothing)
            }
        }
    }

    /// Repeats prompts, if that was asked for, once.
    fn begin(&mut self, scores: &[Vec<Likeliest>], news: &mut Vec<(usize, Increment)>) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        for (row, choice) in self.choices.iter_mut().enumerate() {
            let scores = scores.get(row / self.ask.manner.copies).map_or(&[][..], Vec::as_slice);
            let increment = choice.echo(self.ask.prompt_of(row), scores);
            if !increment.is_empty() {
                news.push((row, increment));
            }
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.choices.len()
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt: self.ask.prompts.iter().map(|prompt| prompt.tokens.len()).sum(),
            completion: self.choices.iter().map(|choice| choice.tokens).sum(),
        }
    }
}
