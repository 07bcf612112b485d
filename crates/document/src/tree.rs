//! A YAML text as values that know where they were written.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, NonFiniteFloatPolicy, Options, Spanned};

use crate::place::Mark;

/// How deep maps and lists may lie in each other.
const MAX_DEPTH: usize = 48;
/// How many values there may be.
const MAX_NODES: usize = 50_000;
/// How many of them may come from aliases.
const MAX_REPLAYED: usize = 20_000;
/// How much of a line is shown.
const SHOWN: usize = 100;

/// A value, and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where.
    pub mark: Mark,
    /// What.
    pub content: Content,
    /// A number as its text has it: a revision such as `0123456` looks like a
    /// number and is none.
    pub written: Option<String>,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// `null`, or nothing at all.
    Nothing,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Whole(i128),
    /// Any other number, finite or not.
    Decimal(f64),
    /// A text.
    Text {
        /// What it says.
        text: String,
        /// How it was written.
        style: Style,
    },
    /// Values in order.
    List(Vec<Node>),
    /// Keys with their values, in order. A key may be there twice.
    Map(Vec<Entry>),
}

/// Whether a text was written with quotes. Without, it would be something else
/// if it looked like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Without.
    Plain,
    /// With, or in a block.
    Quoted,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key was written.
    pub mark: Mark,
    /// Its value.
    pub value: Node,
}

/// What is refused at once, besides what is no YAML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Tags that are not known. Keys that stand twice are given out, all of
    /// them, so that each can be told with everything else.
    Tags,
    /// Keys that stand twice. Tags that are not known say nothing.
    Repeats,
}

/// Why a text is no YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The line, from 1.
    pub line: u64,
    /// The character in the line, from 1.
    pub column: u64,
    /// What the parser says.
    pub message: String,
    /// The line, and a mark below the place.
    pub snippet: String,
}

impl Node {
    /// A value that no text has.
    pub const fn new(mark: Mark, content: Content) -> Self {
        Self { mark, content, written: None }
    }

    /// The value of a text in a file.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        Self::parse_refusing(text, Refused::Tags)
    }

    /// The same, for files that are strict about something else.
    pub fn parse_refusing(text: &str, refused: Refused) -> Result<Self, SyntaxError> {
        // A mark at the beginning is no content, and would move all places.
        let text = text.trim_start_matches('\u{feff}');
        let raw = serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options(refused));
        raw.map(|raw| node(raw, text)).map_err(|error| syntax_error(&error, text))
    }

    /// A value that is in no file.
    pub fn from_json(value: &Value) -> Self {
        let content = match value {
            Value::Null => Content::Nothing,
            Value::Bool(value) => Content::Bool(*value),
            Value::Number(number) => match number.as_i128() {
                Some(whole) => Content::Whole(whole),
                None => Content::Decimal(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Content::Text { text: text.clone(), style: Style::Quoted },
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

    /// The same, with everything in it, as if written elsewhere.
    pub fn marked(mut self, mark: Mark) -> Self {
        self.mark = mark;
        match &mut self.content {
            Content::List(list) => {
                list.iter_mut().for_each(|node| *node = std::mem::replace(node, NOTHING).marked(mark));
            }
            Content::Map(map) => map.iter_mut().for_each(|entry| {
                entry.mark = mark;
                entry.value = std::mem::replace(&mut entry.value, NOTHING).marked(mark);
            }),
            _ => {}
        }
        self
    }

    /// Where a value is written, or else the nearest thing around it.
    pub fn mark_of(&self, path: &str) -> Mark {
        let (mut node, mut mark) = (self, self.mark);
        for part in path.split('.') {
            let inner = match &node.content {
                Content::Map(map) => map.iter().rev().find(|entry| entry.key == part).map(|entry| {
                    // A map or list begins below its key.
                    let at = match entry.value.content {
                        Content::Map(_) | Content::List(_) | Content::Nothing => entry.mark,
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

    /// What it is, in words.
    pub fn shown(&self) -> String {
        match &self.content {
            Content::Nothing => "nothing".to_owned(),
            Content::Bool(value) => format!("`{value}`"),
            Content::Whole(value) => format!("the number {value}"),
            Content::Decimal(value) => format!("the number {value}"),
            Content::Text { text, .. } => format!("the text `{}`", cropped(text)),
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a map".to_owned(),
        }
    }
}

/// What stands in a place while its value is changed.
const NOTHING: Node = Node::new(Mark::Default, Content::Nothing);

/// A text of which not more than a line is shown.
pub fn cropped(text: &str) -> String {
    const MOST: usize = 60;
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= MOST { line } else { line.chars().take(MOST).chain(['…']).collect() }
}

fn options(refused: Refused) -> Options {
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
    options.reject_unsupported_tags = refused == Refused::Tags;
    options.duplicate_keys = match refused {
        // This gives all of them out.
        Refused::Tags => DuplicateKeyPolicy::LastWins,
        Refused::Repeats => DuplicateKeyPolicy::Error,
    };
    options
}

fn syntax_error(error: &serde_saphyr::Error, text: &str) -> SyntaxError {
    use serde_saphyr::Error;
    let (line, column) =
        error.location().map_or((1, 1), |place| (place.line().max(1), place.column().max(1)));
    let message = match error.without_snippet() {
        Error::MultipleDocuments { .. } => "there is more than one document".to_owned(),
        Error::NullIntoString { .. } => "a key is empty".to_owned(),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{key}` stands here twice"),
        other => {
            let message = other.to_string();
            // The place is told elsewhere.
            message.split(" at line ").next().unwrap_or_default().to_owned()
        }
    };
    SyntaxError { line, column, message: cropped(&message), snippet: snippet(text, line, column) }
}

/// A line, and a mark below the place.
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
    let start = column.saturating_sub(SHOWN / 2).min(whole.len());
    let shown: String = whole[start..].iter().take(SHOWN).collect();
    let number = line.to_string();
    let margin = " ".repeat(number.len());
    let indent = " ".repeat(column.saturating_sub(start).min(SHOWN));
    format!("{number} | {}\n{margin} | {indent}^", shown.trim_end())
}

fn node(raw: Spanned<Raw>, text: &str) -> Node {
    let mark = Mark::At { line: raw.referenced.line(), column: raw.referenced.column() };
    let span = raw.defined.span();
    let written = span.byte_offset().zip(span.byte_len()).and_then(|(start, length)| {
        text.get(usize::try_from(start).ok()?..usize::try_from(start + length).ok()?)
    });
    let content = match raw.value {
        Raw::Plain(number @ (Content::Whole(_) | Content::Decimal(_))) => {
            let written = written.map(|written| written.trim().to_owned());
            return Node { mark, content: number, written };
        }
        Raw::Plain(content) => content,
        Raw::Text(value) => {
            // Blocks have lines; what has quotes begins with one.
            let plain =
                written.is_some_and(|written| !written.starts_with(['\'', '"']) && !written.contains('\n'));
            Content::Text { text: value, style: if plain { Style::Plain } else { Style::Quoted } }
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

/// A value as the parser gives it.
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
        Ok(Raw::Plain(Content::Nothing))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Whole(value.into())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Whole(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Plain(Content::Decimal(value)))
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
            Content::Nothing => serializer.serialize_unit(),
            Content::Bool(value) => serializer.serialize_bool(*value),
            Content::Whole(value) => match (u64::try_from(*value), i64::try_from(*value)) {
                (Ok(value), _) => serializer.serialize_u64(value),
                (_, Ok(value)) => serializer.serialize_i64(value),
                _ => serializer.serialize_i128(*value),
            },
            Content::Decimal(value) => serializer.serialize_f64(*value),
            Content::Text { text, .. } => serializer.serialize_str(text),
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
    fn what_is_refused_is_for_the_file_to_say() {
        let (twice, tagged) = ("a: 1\nb: 2\na: 3\n", "a: !own [1]\n");
        let Content::Map(all) = Node::parse(twice).unwrap().content else { panic!("no map") };
        assert_eq!(all.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["a", "b", "a"]);
        let error = Node::parse_refusing(twice, Refused::Repeats).unwrap_err();
        assert_eq!((error.line, error.message.as_str()), (3, "the key `a` stands here twice"));
        assert!(Node::parse(tagged).is_err());
        let node = Node::parse_refusing(tagged, Refused::Repeats).unwrap();
        assert_eq!(serde_json::to_value(node).unwrap(), serde_json::json!({"a": [1]}));
    }

    #[test]
    fn numbers_are_also_as_they_were_written() {
        let text = "\u{feff}[0123, 1.10, .inf, 1_000, '7', true, &a 007, *a]";
        let Content::List(list) = Node::parse(text).unwrap().content else { panic!("no list") };
        let written: Vec<Option<&str>> = list.iter().map(|node| node.written.as_deref()).collect();
        let plain = ["0123", "1.10", ".inf", "1_000"].map(Some);
        assert_eq!(written, [&plain[..], &[None, None, Some("007"), Some("007")]].concat());
    }
}
