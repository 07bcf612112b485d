//! YAML values with their lines and columns.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, NonFiniteFloatPolicy, Options, Spanned};

use crate::origin::Mark;

/// Limit of nested maps and lists.
const MAX_DEPTH: usize = 48;
/// Limit of values in a document.
const MAX_NODES: usize = 50_000;
/// Limit of values that come from aliases.
const MAX_REPLAYED: usize = 20_000;
/// Characters of a line that a snippet shows.
const SNIPPET_WIDTH: usize = 100;

/// A YAML value with its position.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Node {
    pub mark: Mark,
    pub content: Content,
    /// The text of a number, for strings that look like one: the Git revision
    /// `0123456`.
    pub number_text: Option<String>,
}

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Content {
    /// `null`, `~` or no value.
    Null,
    Bool(bool),
    Integer(i128),
    /// Any other number, finite or not.
    Float(f64),
    String {
        text: String,
        style: Style,
    },
    List(Vec<Node>),
    /// Entries in order. Keys may repeat.
    Map(Vec<Entry>),
}

/// The style of a string. A plain one may change its type when variables in it
/// are substituted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// In quotes, or a block scalar.
    Quoted,
}

/// A key of a map with its value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Entry {
    pub key: String,
    /// The position of the key.
    pub mark: Mark,
    pub value: Node,
}

/// Constructs that the parser rejects, in addition to invalid YAML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Unknown tags. Duplicate keys are kept, so that a [`Validator`] can
    /// report them with all other errors.
    ///
    /// [`Validator`]: crate::Validator
    UnknownTags,
    /// Duplicate keys. Unknown tags are ignored.
    DuplicateKeys,
}

/// An error in the syntax of a YAML text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SyntaxError {
    /// Counted from 1.
    pub line: u64,
    /// In characters, counted from 1.
    pub column: u64,
    pub message: String,
    /// The line, and a caret below the column.
    pub snippet: String,
}

impl Node {
    /// Creates a node.
    pub const fn new(mark: Mark, content: Content) -> Self {
        Self { mark, content, number_text: None }
    }

    /// Parses a YAML document.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        Self::parse_rejecting(text, Rejected::UnknownTags)
    }

    /// Parses a YAML document, choosing what else to reject.
    pub fn parse_rejecting(text: &str, rejected: Rejected) -> Result<Self, SyntaxError> {
        // A byte order mark would shift the columns of the first line.
        let text = text.trim_start_matches('\u{feff}');
        let raw = serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options(rejected));
        raw.map(|raw| node(raw, text)).map_err(|error| syntax_error(&error, text))
    }

    /// Converts a JSON value.
    pub fn from_json(value: &Value) -> Self {
        let content = match value {
            Value::Null => Content::Null,
            Value::Bool(value) => Content::Bool(*value),
            Value::Number(number) => match number.as_i128() {
                Some(whole) => Content::Integer(whole),
                None => Content::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Content::String { text: text.clone(), style: Style::Quoted },
            Value::Array(list) => Content::List(list.iter().map(Self::from_json).collect()),
            Value::Object(map) => Content::Map(
                map.iter()
                    .map(|(key, value)| Entry {
                        key: key.clone(),
                        mark: Mark::Default,
                        value: Self::from_json(value),
                    })
                    .collect(),
            ),
        };
        Self::new(Mark::Default, content)
    }

    /// Sets the mark of the node and of everything inside it.
    #[must_use]
    pub fn with_mark(mut self, mark: Mark) -> Self {
        self.mark = mark;
        match &mut self.content {
            Content::List(list) => {
                list.iter_mut().for_each(|node| *node = std::mem::replace(node, NULL).with_mark(mark));
            }
            Content::Map(map) => map.iter_mut().for_each(|entry| {
                entry.mark = mark;
                entry.value = std::mem::replace(&mut entry.value, NULL).with_mark(mark);
            }),
            _ => {}
        }
        self
    }

    /// The value of a full key, if it exists.
    pub fn get(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |node, part| match &node.content {
            Content::Map(map) => map.iter().rev().find(|entry| entry.key == part).map(|entry| &entry.value),
            Content::List(list) => list.get(part.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// The string of a full key, if it is one.
    pub fn text_of(&self, path: &str) -> Option<&str> {
        match &self.get(path)?.content {
            Content::String { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The mark of a full key, or of the nearest enclosing key that exists.
    pub fn mark_of(&self, path: &str) -> Mark {
        let (mut node, mut mark) = (self, self.mark);
        for part in path.split('.') {
            let inner = match &node.content {
                Content::Map(map) => map.iter().rev().find(|entry| entry.key == part).map(|entry| {
                    // Containers begin on the line after their key.
                    let at = match entry.value.content {
                        Content::Map(_) | Content::List(_) | Content::Null => entry.mark,
                        _ => entry.value.mark,
                    };
                    (at, &entry.value)
                }),
                Content::List(list) => {
                    part.parse::<usize>().ok().and_then(|index| list.get(index)).map(|node| (node.mark, node))
                }
                _ => None,
            };
            let Some((at, inner)) = inner else { break };
            (mark, node) = (at, inner);
        }
        mark
    }

    /// Describes the value in an error message: "the string `high`".
    pub fn describe(&self) -> String {
        match &self.content {
            Content::Null => "null".to_owned(),
            Content::Bool(value) => format!("`{value}`"),
            Content::Integer(value) => format!("the number {value}"),
            Content::Float(value) => format!("the number {value}"),
            Content::String { text, .. } => format!("the string `{}`", truncate(text)),
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a map".to_owned(),
        }
    }
}

/// Placeholder for a node that is being replaced.
const NULL: Node = Node::new(Mark::Default, Content::Null);

/// Shortens a text to one line of at most 60 characters.
pub fn truncate(text: &str) -> String {
    const MAX: usize = 60;
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= MAX { line } else { line.chars().take(MAX).chain(['…']).collect() }
}

fn options(rejected: Rejected) -> Options {
    let mut budget = serde_saphyr::Budget::default();
    budget.max_depth = MAX_DEPTH;
    budget.max_nodes = MAX_NODES;
    budget.max_events = 4 * MAX_NODES;
    budget.max_recorded_anchor_events = MAX_REPLAYED;
    let mut options = Options::default();
    options.alias_limits.max_total_replayed_events = MAX_REPLAYED;
    options.budget = Some(budget);
    options.with_snippet = false;
    options.emit_comments = false;
    options.strict_booleans = true;
    options.non_finite_float_policy = NonFiniteFloatPolicy::PassThrough;
    options.reject_unsupported_tags = rejected == Rejected::UnknownTags;
    options.duplicate_keys = match rejected {
        // `RawVisitor` keeps every entry.
        Rejected::UnknownTags => DuplicateKeyPolicy::LastWins,
        Rejected::DuplicateKeys => DuplicateKeyPolicy::Error,
    };
    options
}

fn syntax_error(error: &serde_saphyr::Error, text: &str) -> SyntaxError {
    use serde_saphyr::Error;
    let (line, column) =
        error.location().map_or((1, 1), |location| (location.line().max(1), location.column().max(1)));
    let message = match error.without_snippet() {
        Error::MultipleDocuments { .. } => "more than one document".to_owned(),
        Error::NullIntoString { .. } => "empty key".to_owned(),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate key `{key}`"),
        other => {
            let message = other.to_string();
            // `line` and `column` carry the position.
            message.split(" at line ").next().unwrap_or_default().to_owned()
        }
    };
    SyntaxError { line, column, message: truncate(&message), snippet: snippet(text, line, column) }
}

/// A line, and a caret below the column.
fn snippet(text: &str, line: u64, column: u64) -> String {
    let index = usize::try_from(line - 1).unwrap_or(usize::MAX);
    let column = usize::try_from(column - 1).unwrap_or(0);
    let whole: Vec<char> = text
        .lines()
        .nth(index)
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let start = column.saturating_sub(SNIPPET_WIDTH / 2).min(whole.len());
    let shown: String = whole[start..].iter().take(SNIPPET_WIDTH).collect();
    let number = line.to_string();
    let margin = " ".repeat(number.len());
    let indent = " ".repeat(column.saturating_sub(start).min(SNIPPET_WIDTH));
    format!("{number} | {}\n{margin} | {indent}^", shown.trim_end())
}

fn node(raw: Spanned<Raw>, text: &str) -> Node {
    let mark = Mark::At { line: raw.referenced.line(), column: raw.referenced.column() };
    let span = raw.defined.span();
    let written = span.byte_offset().zip(span.byte_len()).and_then(|(start, length)| {
        text.get(usize::try_from(start).ok()?..usize::try_from(start + length).ok()?)
    });
    let content = match raw.value {
        Raw::Plain(number @ (Content::Integer(_) | Content::Float(_))) => {
            let number_text = written.map(|written| written.trim().to_owned());
            return Node { mark, content: number, number_text };
        }
        Raw::Plain(content) => content,
        Raw::Text(value) => {
            // Block scalars contain line breaks; quoted ones start with a quote.
            let plain =
                written.is_some_and(|written| !written.starts_with(['\'', '"']) && !written.contains('\n'));
            Content::String { text: value, style: if plain { Style::Plain } else { Style::Quoted } }
        }
        Raw::List(list) => Content::List(list.into_iter().map(|raw| node(raw, text)).collect()),
        Raw::Map(map) => Content::Map(
            map.into_iter()
                .map(|(key, value)| Entry {
                    mark: Mark::At { line: key.referenced.line(), column: key.referenced.column() },
                    key: key.value,
                    value: node(value, text),
                })
                .collect(),
        ),
    };
    Node::new(mark, content)
}

/// A value as the parser returns it.
enum Raw {
    Plain(Content),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Integer(value.into())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Integer(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = values.next_element()? {
            list.push(value);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(pair) = pairs.next_entry()? {
            map.push(pair);
        }
        Ok(Raw::Map(map))
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.content {
            Content::Null => serializer.serialize_unit(),
            Content::Bool(value) => serializer.serialize_bool(*value),
            Content::Integer(value) => match (u64::try_from(*value), i64::try_from(*value)) {
                (Ok(value), _) => serializer.serialize_u64(value),
                (_, Ok(value)) => serializer.serialize_i64(value),
                _ => serializer.serialize_i128(*value),
            },
            Content::Float(value) => serializer.serialize_f64(*value),
            Content::String { text, .. } => serializer.serialize_str(text),
            Content::List(list) => {
                let mut values = serializer.serialize_seq(Some(list.len()))?;
                list.iter().try_for_each(|node| values.serialize_element(node))?;
                values.end()
            }
            Content::Map(map) => {
                let mut entries = serializer.serialize_map(Some(map.len()))?;
                map.iter().try_for_each(|entry| entries.serialize_entry(&entry.key, &entry.value))?;
                entries.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn duplicate_keys_and_unknown_tags_are_rejected_on_request() {
        let (twice, tagged) = ("a: 1\nb: 2\na: 3\n", "a: !own [1]\n");
        let Content::Map(all) = Node::parse(twice).unwrap().content else { panic!("no map") };
        assert_eq!(all.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["a", "b", "a"]);
        let error = Node::parse_rejecting(twice, Rejected::DuplicateKeys).unwrap_err();
        assert_eq!((error.line, error.message.as_str()), (3, "duplicate key `a`"));
        assert!(Node::parse(tagged).is_err());
        let node = Node::parse_rejecting(tagged, Rejected::DuplicateKeys).unwrap();
        assert_eq!(serde_json::to_value(node).unwrap(), serde_json::json!({"a": [1]}));
    }

    #[test]
    fn numbers_keep_their_text() {
        let text = "\u{feff}[0123, 1.10, .inf, 1_000, '7', true, &a 007, *a]";
        let Content::List(list) = Node::parse(text).unwrap().content else { panic!("no list") };
        let written: Vec<Option<&str>> = list.iter().map(|node| node.number_text.as_deref()).collect();
        let plain = ["0123", "1.10", ".inf", "1_000"].map(Some);
        assert_eq!(written, [&plain[..], &[None, None, Some("007"), Some("007")]].concat());
    }
}
