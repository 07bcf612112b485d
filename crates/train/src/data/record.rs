//! Parsing a JSON object as a document.

use std::fmt;

use weightloom_hub::DataKind;
use weightloom_hub::text::{Message, OrderedJson};

use super::conversation;
use super::error::DataError;
use super::preference::{self, LabelledCompletion, Preference};
use crate::config::DataFormat;

/// The content of a document.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// A prompt with the completion to learn.
    Prompt { prompt: String, completion: String },
    /// A conversation, with the tools that it may call.
    Chat { messages: Vec<Message>, tools: Option<Vec<OrderedJson>> },
    /// Two completions of a prompt, one of which is preferred.
    Preference(Box<Preference>),
    /// A completion of a prompt that is desirable or not.
    Labelled(Box<LabelledCompletion>),
}

impl Content {
    pub(super) fn kind(&self) -> DataKind {
        match self {
            Self::Text(_) => DataKind::Text,
            Self::Prompt { .. } => DataKind::PromptCompletion,
            Self::Chat { .. } => DataKind::Chat,
            Self::Preference(pair) => pair.kind(),
            Self::Labelled(labelled) => labelled.completion.kind(),
        }
    }
}

/// The location of a document, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) file: String,
    pub(super) line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A document with the name of its format.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parsed {
    pub(super) content: Content,
    pub(super) format: &'static str,
}

/// The keys that identify a format, in the order in which errors list them.
const KEYS: [(&str, DataFormat); 7] = [
    ("text", DataFormat::Text),
    ("prompt", DataFormat::PromptCompletion),
    ("completion", DataFormat::PromptCompletion),
    ("messages", DataFormat::Chat),
    ("instruction", DataFormat::Alpaca),
    ("output", DataFormat::Alpaca),
    ("conversations", DataFormat::Sharegpt),
];

/// Parses an object of a JSONL file or a JSON array. Ignores unknown keys, which
/// are often metadata.
pub(super) fn parse(line: &str, format: &DataFormat, origin: &Origin) -> Result<Parsed, DataError> {
    let Origin { file, line: number } = origin;
    let line = line.trim_end_matches(['\n', '\r']);
    let data: OrderedJson = serde_json::from_str(line).map_err(|error| {
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        // An object of an array may span several lines.
        let line = number + error.line().saturating_sub(1);
        DataError::Syntax { file: file.clone(), line, column: error.column(), message }
    })?;
    let OrderedJson::Map(fields) = data else {
        let (key, found) = ("the line".to_owned(), kind(&data));
        return Err(DataError::WrongType {
            file: file.clone(),
            line: *number,
            key,
            expected: "an object",
            found,
        });
    };
    parse_fields(fields, format, origin)
}

/// The document of named values.
pub(super) fn parse_fields(
    fields: Vec<(String, OrderedJson)>,
    format: &DataFormat,
    origin: &Origin,
) -> Result<Parsed, DataError> {
    let mut record = Record { fields, origin };
    let (format, content) = match record.format(format)? {
        DataFormat::Text | DataFormat::Auto | DataFormat::Registered(_) => {
            ("text", Content::Text(record.text("text")?))
        }
        DataFormat::PromptCompletion if preference::is_labelled(&record) => {
            ("labelled_completion", Content::Labelled(Box::new(preference::labelled(&mut record)?)))
        }
        DataFormat::PromptCompletion => {
            let (prompt, completion) = (record.text("prompt")?, record.text("completion")?);
            ("prompt_completion", Content::Prompt { prompt, completion })
        }
        DataFormat::Preference => {
            ("preference", Content::Preference(Box::new(preference::preference(&mut record)?)))
        }
        DataFormat::Chat => {
            let messages = conversation::messages(&mut record, "messages")?;
            ("chat", Content::Chat { messages, tools: conversation::tools(&mut record)? })
        }
        DataFormat::Sharegpt => {
            let messages = conversation::sharegpt(&mut record)?;
            ("sharegpt", Content::Chat { messages, tools: conversation::tools(&mut record)? })
        }
        DataFormat::Alpaca => {
            ("alpaca", Content::Chat { messages: conversation::alpaca(&mut record)?, tools: None })
        }
    };
    Ok(Parsed { content, format })
}

/// An object with named values.
pub(super) struct Record<'a> {
    pub(super) fields: Vec<(String, OrderedJson)>,
    pub(super) origin: &'a Origin,
}

impl Record<'_> {
    /// The format, detected from the keys if it is `auto`.
    fn format(&self, format: &DataFormat) -> Result<DataFormat, DataError> {
        if *format != DataFormat::Auto {
            return Ok(format.clone());
        }
        let has = |key: &str| self.fields.iter().any(|(name, _)| name == key);
        // Preferences often have the conversation in other keys as well.
        if has("chosen") || has("rejected") {
            return Ok(DataFormat::Preference);
        }
        let mut present: Vec<&(&str, DataFormat)> = KEYS.iter().filter(|(key, _)| has(key)).collect();
        let Origin { file, line } = self.origin.clone();
        let alpaca = has("instruction") && has("output");
        // Alone, they are names that records of other formats have too.
        present.retain(|(_, format)| alpaca || *format != DataFormat::Alpaca);
        // Alpaca files often repeat the record as rendered text.
        present.retain(|(_, format)| !alpaca || *format != DataFormat::Text);
        let Some((_, first)) = present.first() else {
            return Err(DataError::UnknownFormat { file, line, keys: self.keys() });
        };
        if present.iter().any(|(_, format)| format != first) {
            let keys = present.into_iter().map(|(key, _)| (*key).to_owned()).collect();
            return Err(DataError::Ambiguous { file, line, keys });
        }
        Ok(first.clone())
    }

    fn keys(&self) -> Vec<String> {
        self.fields.iter().map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn find(&mut self, key: &str) -> Option<OrderedJson> {
        let at = self.fields.iter().position(|(name, _)| name == key)?;
        Some(std::mem::replace(&mut self.fields[at].1, OrderedJson::Null))
    }

    pub(super) fn take(&mut self, key: &'static str) -> Result<OrderedJson, DataError> {
        let Origin { file, line } = self.origin.clone();
        self.find(key).ok_or_else(|| DataError::MissingKey { file, line, key, keys: self.keys() })
    }

    pub(super) fn text(&mut self, key: &'static str) -> Result<String, DataError> {
        match self.take(key)? {
            OrderedJson::Text(text) => Ok(text),
            other => Err(self.wrong(key.to_owned(), "a string", kind(&other))),
        }
    }

    /// A string that may be missing or null.
    pub(super) fn optional_text(&mut self, key: &'static str) -> Result<String, DataError> {
        match self.find(key) {
            None | Some(OrderedJson::Null) => Ok(String::new()),
            Some(OrderedJson::Text(text)) => Ok(text),
            Some(other) => Err(self.wrong(key.to_owned(), "a string", kind(&other))),
        }
    }

    pub(super) fn wrong(&self, key: String, expected: &'static str, found: &'static str) -> DataError {
        let Origin { file, line } = self.origin.clone();
        DataError::WrongType { file, line, key, expected, found }
    }
}

/// The type of a JSON value, for errors.
pub(super) fn kind(data: &OrderedJson) -> &'static str {
    match data {
        OrderedJson::Null => "null",
        OrderedJson::Bool(_) => "true or false",
        OrderedJson::Number(_) => "a number",
        OrderedJson::Text(_) => "a string",
        OrderedJson::List(_) => "a list",
        OrderedJson::Map(_) => "an object",
    }
}
