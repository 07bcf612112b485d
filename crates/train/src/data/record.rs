//! Parsing a JSON object as a document.

use std::fmt;

use weightloom_hub::DataKind;
use weightloom_hub::text::{Message, OrderedJson};

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

/// Parses an object of a JSONL file or a JSON array. Ignores unknown keys, which
/// are often metadata.
pub(super) fn parse(line: &str, format: &DataFormat, origin: &Origin) -> Result<Content, DataError> {
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
    let mut record = Record { fields, origin };
    match record.format(format)? {
        DataFormat::Text | DataFormat::Auto | DataFormat::Registered(_) => {
            Ok(Content::Text(record.text("text")?))
        }
        DataFormat::PromptCompletion if preference::is_labelled(&record) => {
            Ok(Content::Labelled(Box::new(preference::labelled(&mut record)?)))
        }
        DataFormat::Preference => Ok(Content::Preference(Box::new(preference::preference(&mut record)?))),
        DataFormat::PromptCompletion => {
            Ok(Content::Prompt { prompt: record.text("prompt")?, completion: record.text("completion")? })
        }
        DataFormat::Chat => Ok(Content::Chat { messages: record.messages()?, tools: record.tools()? }),
    }
}

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
        let keys = [
            ("text", DataFormat::Text),
            ("prompt", DataFormat::PromptCompletion),
            ("completion", DataFormat::PromptCompletion),
            ("messages", DataFormat::Chat),
        ];
        let has = |key: &str| self.fields.iter().any(|(name, _)| name == key);
        // Preferences often have the conversation in other keys as well.
        if has("chosen") || has("rejected") {
            return Ok(DataFormat::Preference);
        }
        let present: Vec<(&str, DataFormat)> = keys.into_iter().filter(|(key, _)| has(key)).collect();
        let Origin { file, line } = self.origin.clone();
        let Some((_, first)) = present.first() else {
            return Err(DataError::UnknownFormat { file, line, keys: self.keys() });
        };
        if present.iter().any(|(_, format)| format != first) {
            let keys = present.into_iter().map(|(key, _)| key.to_owned()).collect();
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

    fn text(&mut self, key: &'static str) -> Result<String, DataError> {
        match self.take(key)? {
            OrderedJson::Text(text) => Ok(text),
            other => Err(self.wrong(key.to_owned(), "a string", kind(&other))),
        }
    }

    fn messages(&mut self) -> Result<Vec<Message>, DataError> {
        let data = self.take("messages")?;
        self.message_list("messages", data)
    }

    /// The messages that the key has.
    pub(super) fn message_list(
        &self,
        key: &'static str,
        data: OrderedJson,
    ) -> Result<Vec<Message>, DataError> {
        let list = match data {
            OrderedJson::List(list) if !list.is_empty() => list,
            OrderedJson::List(_) => {
                return Err(self.wrong(key.to_owned(), "a list of messages", "an empty list"));
            }
            other => return Err(self.wrong(key.to_owned(), "a list of messages", kind(&other))),
        };
        let message = |(at, data): (usize, OrderedJson)| {
            let found = match &data {
                OrderedJson::Map(_) => "an object without a string `role`",
                other => kind(other),
            };
            let wrong = || self.wrong(format!("{key}[{at}]"), "an object with a string `role`", found);
            Message::try_from(data).map_err(|_| wrong())
        };
        list.into_iter().enumerate().map(message).collect()
    }

    pub(super) fn tools(&mut self) -> Result<Option<Vec<OrderedJson>>, DataError> {
        match self.find("tools") {
            None | Some(OrderedJson::Null) => Ok(None),
            Some(OrderedJson::List(tools)) => Ok(Some(tools)),
            Some(other) => Err(self.wrong("tools".to_owned(), "a list of tools", kind(&other))),
        }
    }

    pub(super) fn wrong(&self, key: String, expected: &'static str, found: &'static str) -> DataError {
        let Origin { file, line } = self.origin.clone();
        DataError::WrongType { file, line, key, expected, found }
    }
}

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
