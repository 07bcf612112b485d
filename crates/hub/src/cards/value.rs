//! Values of cards and their origins.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Number};

use super::source::SourceKind;

/// A value with its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The value.
    pub value: Value,
    /// Card, file and line.
    pub origin: Origin,
}

/// A value of a card.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, `~`, or no value after a colon.
    Nothing,
    /// `true` or `false`. Other words, such as `no`, are strings.
    Bool(bool),
    /// A number.
    Number {
        /// The number.
        number: Number,
        /// The original text: a revision such as `0123456` only looks like a
        /// number.
        written: String,
    },
    /// A string. Non-finite numbers are strings, too.
    Text(String),
    /// A list.
    List(Vec<Field>),
    /// A map.
    Map(BTreeMap<String, Field>),
}

/// Type of a value, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Nothing,
    /// `true` or `false`.
    Bool,
    /// A number.
    Number,
    /// A non-negative integer.
    WholeNumber,
    /// A string.
    Text,
    /// A list.
    List,
    /// A list of strings.
    Texts,
    /// A map.
    Map,
    /// 64 hex digits.
    Sha256,
    /// 64 hex digits, or a map from file names to 64 hex digits.
    Sums,
    /// A relative path without `..`.
    InnerPath,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Bool => "`true` or `false`",
            Self::Number => "a number",
            Self::WholeNumber => "an integer",
            Self::Text => "a string",
            Self::List => "a list",
            Self::Texts => "a list of strings",
            Self::Map => "a map",
            Self::Sha256 => "64 hex digits",
            Self::Sums => "64 hex digits, or a map from file names to 64 hex digits",
            Self::InnerPath => "a relative path without `..`",
        })
    }
}

/// Card, file and line of a value.
#[derive(Clone, PartialEq, Eq)]
pub struct Origin {
    card: Arc<str>,
    location: CardLocation,
}

/// A line in a file of a source.
#[derive(Clone, PartialEq, Eq)]
pub struct CardLocation {
    source: SourceKind,
    file: Arc<Path>,
    line: u32,
}

impl Origin {
    pub(super) fn new(card: &Arc<str>, location: CardLocation) -> Self {
        Self { card: Arc::clone(card), location }
    }

    /// The name of the card.
    pub fn card(&self) -> &str {
        &self.card
    }

    /// The environment of the card, if it is the card of one.
    pub fn environment(&self) -> Option<&str> {
        self.card.split_once('@').map(|(_, environment)| environment)
    }

    /// The location.
    pub fn location(&self) -> &CardLocation {
        &self.location
    }

    /// The kind of source.
    pub fn source(&self) -> SourceKind {
        self.location.source
    }

    /// The file, or the label of cards without one.
    pub fn file(&self) -> &Path {
        &self.location.file
    }

    /// The line, from 1; 0 for cards without a file.
    pub fn line(&self) -> usize {
        self.location.line()
    }
}

impl CardLocation {
    pub(super) fn new(source: SourceKind, file: &Arc<Path>, line: u32) -> Self {
        Self { source, file: Arc::clone(file), line }
    }

    /// Another line of the same file.
    pub(super) fn at(&self, line: u32) -> Self {
        Self { line, ..self.clone() }
    }

    /// The kind of source.
    pub fn source(&self) -> SourceKind {
        self.source
    }

    /// The file, or the label of cards without one.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The line, from 1; 0 for cards without a file.
    pub fn line(&self) -> usize {
        self.line as usize
    }

    /// The folder for relative paths, if there is one.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        (self.source != SourceKind::BuiltIn && self.file.is_absolute())
            .then(|| self.file.parent().map(Path::to_owned))
            .flatten()
    }
}

impl fmt::Display for CardLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        Ok(())
    }
}

impl fmt::Debug for CardLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.source)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "card `{}`, {}", self.card, self.location)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.location.source)
    }
}

impl Value {
    /// The type of the value.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Nothing => Kind::Nothing,
            Self::Bool(_) => Kind::Bool,
            Self::Number { .. } => Kind::Number,
            Self::Text(_) => Kind::Text,
            Self::List(_) => Kind::List,
            Self::Map(_) => Kind::Map,
        }
    }

    /// A string, or the original text of a number.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Number { written: text, .. } => Some(text),
            _ => None,
        }
    }

    /// The value as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Nothing => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Number { number, .. } => number.clone().into(),
            Self::Text(text) => text.as_str().into(),
            Self::List(fields) => fields.iter().map(|field| field.value.to_json()).collect(),
            Self::Map(fields) => {
                let pairs = fields.iter().map(|(key, field)| (key.clone(), field.value.to_json()));
                pairs.collect::<Map<_, _>>().into()
            }
        }
    }
}

impl Field {
    /// Converts JSON, with one origin for all of it.
    pub fn from_json(json: &serde_json::Value, origin: &Origin) -> Self {
        let value = match json {
            serde_json::Value::Null => Value::Nothing,
            serde_json::Value::Bool(value) => Value::Bool(*value),
            serde_json::Value::Number(number) => {
                Value::Number { number: number.clone(), written: number.to_string() }
            }
            serde_json::Value::String(text) => Value::Text(text.clone()),
            serde_json::Value::Array(values) => {
                Value::List(values.iter().map(|value| Self::from_json(value, origin)).collect())
            }
            serde_json::Value::Object(map) => {
                let pairs = map.iter().map(|(key, value)| (key.clone(), Self::from_json(value, origin)));
                Value::Map(pairs.collect())
            }
        };
        Self { value, origin: origin.clone() }
    }
}
