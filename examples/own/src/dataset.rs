//! The dataset: facts as lines of text.

use weightloom::train::data::{Document, RecordFormat};

const ARROW: &str = " =>";

/// A question and its answer, as in `capital of France => Paris`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The question with the arrow.
    pub prompt: String,
    /// The answer with the space before it, which a model learns.
    pub completion: String,
}

impl Fact {
    /// Reads a line. An error says what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, String> {
        let (question, answer) = line.split_once(ARROW).ok_or("there is no ` =>` in it")?;
        if question.trim().is_empty() || answer.trim().is_empty() {
            return Err("a fact has a question and an answer".to_owned());
        }
        Ok(Self { prompt: format!("{question}{ARROW}"), completion: answer.to_owned() })
    }
}

/// The format of the dataset, as `data.format` names it.
#[derive(Debug)]
pub struct Facts;

impl RecordFormat for Facts {
    fn name(&self) -> &'static str {
        "facts"
    }

    fn summary(&self) -> &'static str {
        "A question, an arrow and an answer: `capital of France => Paris`."
    }

    fn parse(&self, record: &str) -> Result<Document, String> {
        let Fact { prompt, completion } = Fact::parse(record)?;
        Ok(Document::Prompt { prompt, completion })
    }
}
