//! A document as tokens, and which of them count in the loss.
//!
//! - Of a text all tokens count. It ends with the tokenizer's first token that
//!   ends a text, if it has one, and begins with what the tokenizer puts there.
//! - A prompt and its completion are tokenized as one text, since that is how
//!   the model will see them. Tokens with a byte of the completion count, and
//!   the token that ends the text.
//! - A conversation is tokenized as its template renders it, without anything
//!   added. What assistants write counts, with the token that ends their turn,
//!   but not white space that a template puts behind that token.
//!
//! Special tokens that a document spells out are recognised as such.
//!
//! The first token of a document never counts: nothing of the document stands
//! before it that it could be told from. So the same tokens count however
//! documents are cut into rows.

use std::ops::Range;
use std::sync::Arc;

use weightloom_hub::text::{ChatContext, ChatTemplate, ChatTemplates, Encoded, Message, Special, Tokenizer};

use super::chat::{self, Answer, End, Unclear};
use super::error::DataError;
use super::record::{Content, Origin};
use crate::config::TrainOn;

/// What became of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Fate {
    /// It is there as it was.
    Whole,
    /// Its end is missing, since it is longer than a row.
    Truncated,
    /// It is not there, since nothing in it counts.
    LeftOut,
}

/// A document as tokens. Empty if it is left out, else two tokens or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) tokens: Vec<u32>,
    /// Which of them count.
    pub(super) counts: Vec<bool>,
    pub(super) fate: Fate,
}

impl Sample {
    fn left_out() -> Self {
        Self { tokens: Vec::new(), counts: Vec::new(), fate: Fate::LeftOut }
    }

    pub(super) fn targets(&self) -> usize {
        self.counts.iter().filter(|&&counts| counts).count()
    }
}

/// Makes samples of documents.
pub(super) struct Sampler {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) templates: Templates,
    pub(super) train_on: TrainOn,
    /// Tokens that a prompt or a conversation may have.
    pub(super) longest: usize,
    /// Tokens that the model has.
    pub(super) vocabulary: usize,
}

/// Where templates for conversations come from.
pub(super) enum Templates {
    /// From the model.
    Model(Arc<ChatTemplates>),
    /// From a file.
    File(Box<ChatTemplate>),
}

impl Templates {
    fn pick(&self, context: &ChatContext) -> Option<&ChatTemplate> {
        match self {
            Self::Model(templates) => templates.pick(context),
            Self::File(template) => Some(template),
        }
    }
}

impl Sampler {
    pub(super) fn sample(&self, content: Content, origin: &Origin) -> Result<Sample, DataError> {
        let mut sample = match content {
            Content::Text(text) => self.text(&text, origin)?,
            Content::Prompt { prompt, completion } => self.prompt(prompt, &completion, origin)?,
            Content::Chat { messages, tools } => {
                let context = ChatContext { tools, ..ChatContext::default() };
                self.chat(&messages, &context, origin)?
            }
        };
        if let Some(&token) = sample.tokens.iter().find(|&&token| token as usize >= self.vocabulary) {
            let Origin { file, line } = origin.clone();
            return Err(DataError::Token { file, line, token, vocabulary: self.vocabulary });
        }
        if let Some(first) = sample.counts.first_mut() {
            *first = false;
        }
        if sample.targets() == 0 {
            return Ok(Sample::left_out());
        }
        Ok(sample)
    }

    fn text(&self, text: &str, origin: &Origin) -> Result<Sample, DataError> {
        let mut tokens = self.tokenizer.encode(text, Special::Add).map_err(|error| DataError::Encode {
            file: origin.file.clone(),
            line: origin.line,
            error,
        })?;
        let marks =
            |token: &u32| self.tokenizer.bos() == Some(*token) || self.tokenizer.eos().contains(token);
        if tokens.iter().all(marks) {
            return Ok(Sample::left_out());
        }
        if self.begins_twice(&tokens) {
            tokens.remove(0);
        }
        if self.ends_twice(&tokens) {
            tokens.pop();
        }
        if let Some(end) = self.end(&tokens) {
            tokens.push(end);
        }
        Ok(Sample { counts: vec![true; tokens.len()], tokens, fate: Fate::Whole })
    }

    fn prompt(&self, prompt: String, completion: &str, origin: &Origin) -> Result<Sample, DataError> {
        let from = prompt.len();
        let whole = prompt + completion;
        let Encoded { ids: mut tokens, mut offsets } = self.encode(&whole, Special::Add, origin)?;
        if self.begins_twice(&tokens) {
            tokens.remove(0);
            offsets.remove(0);
        }
        if self.ends_twice(&tokens) {
            tokens.pop();
            offsets.pop();
        }
        let has_bytes = |range: &Range<usize>| !range.is_empty();
        let Some(first) = offsets.iter().position(has_bytes) else { return Ok(Sample::left_out()) };
        let last = offsets.iter().rposition(has_bytes).unwrap_or(first);
        // What the tokenizer adds has no bytes; what it adds at the end is to
        // be learned like the token that we add.
        let answer = from..whole.len();
        let counted = |(at, range)| at > last || (at >= first && overlaps(range, &answer));
        let mut counts: Vec<bool> = offsets.iter().enumerate().map(counted).collect();
        if let Some(end) = self.end(&tokens) {
            tokens.push(end);
            counts.push(true);
        }
        Ok(self.cut(tokens, counts))
    }

    fn chat(
        &self,
        messages: &[Message],
        context: &ChatContext,
        origin: &Origin,
    ) -> Result<Sample, DataError> {
        let Origin { file, line } = origin.clone();
        let Some(template) = self.templates.pick(context) else {
            return Err(DataError::NoTemplate { file, line });
        };
        if self.train_on == TrainOn::All {
            let text = chat::render(template, messages, context).map_err(|error| DataError::Chat {
                file,
                line,
                error,
            })?;
            let tokens = self.encode(&text, Special::Plain, origin)?.ids;
            let counts = vec![true; tokens.len()];
            return Ok(self.cut(tokens, counts));
        }
        let rendered =
            chat::render_answers(template, messages, context).map_err(|unclear| match unclear {
                Unclear::Chat(error) => DataError::Chat { file, line, error },
                Unclear::Untold(at) => DataError::Untold { file, line, message: at + 1 },
            })?;
        let encoded = self.encode(&rendered.text, Special::Plain, origin)?;
        let answers: Vec<Range<usize>> =
            rendered.answers.iter().map(|answer| self.told(*answer, &rendered.text, &encoded)).collect();
        let counts = encoded
            .offsets
            .iter()
            .map(|range| answers.iter().any(|answer| overlaps(range, answer)))
            .collect();
        Ok(self.cut(encoded.ids, counts))
    }

    /// The bytes of an answer, now that tokens are known.
    fn told(&self, answer: Answer, text: &str, encoded: &Encoded) -> Range<usize> {
        let marks = || {
            let tokens = encoded.ids.iter().zip(&encoded.offsets);
            tokens.filter(|(id, _)| self.tokenizer.is_special(**id)).map(|(_, range)| range)
        };
        let Answer { start, end } = answer;
        let end = match end {
            End::Turn(end) => {
                let last = marks().rfind(|mark| mark.start >= start && mark.end <= end);
                let blank =
                    |mark: &&Range<usize>| text.as_bytes()[mark.end..end].iter().all(u8::is_ascii_whitespace);
                last.filter(blank).map_or(end, |mark| mark.end)
            }
            End::Mark { words, next } => {
                let first = marks().find(|mark| mark.start >= words && mark.end <= next);
                first.map_or(words, |mark| mark.end)
            }
        };
        start..end.max(start)
    }

    fn encode(&self, text: &str, special: Special, origin: &Origin) -> Result<Encoded, DataError> {
        self.tokenizer.encode_with_offsets(text, special).map_err(|error| DataError::Encode {
            file: origin.file.clone(),
            line: origin.line,
            error,
        })
    }

    /// Whether a text spells out the token that the tokenizer begins it with.
    fn begins_twice(&self, tokens: &[u32]) -> bool {
        matches!((tokens, self.tokenizer.bos()), ([first, second, ..], Some(bos)) if [*first, *second] == [bos; 2])
    }

    /// The same for the token that ends it.
    fn ends_twice(&self, tokens: &[u32]) -> bool {
        matches!((tokens, self.tokenizer.eos()), ([.., before, last], [eos, ..]) if [before, last] == [eos; 2])
    }

    /// The token that ends a text, unless it is there already.
    fn end(&self, tokens: &[u32]) -> Option<u32> {
        let end = self.tokenizer.eos().first().copied()?;
        (tokens.last() != Some(&end)).then_some(end)
    }

    /// Of prompts and conversations, what is too long is cut off at the end:
    /// an answer without its question teaches the wrong thing.
    fn cut(&self, mut tokens: Vec<u32>, mut counts: Vec<bool>) -> Sample {
        if self.train_on == TrainOn::All {
            counts.fill(true);
        }
        let fate = if tokens.len() > self.longest { Fate::Truncated } else { Fate::Whole };
        tokens.truncate(self.longest);
        counts.truncate(self.longest);
        Sample { tokens, counts, fate }
    }
}

/// Whether a token has a byte of an answer. A token without bytes belongs to
/// what follows it.
fn overlaps(token: &Range<usize>, answer: &Range<usize>) -> bool {
    token.start < answer.end && (token.end > answer.start || token.start >= answer.start)
}
