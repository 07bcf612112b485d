//! One YAML document, which is one card, read when it is first needed.
//!
//! A file is cut at the lines that begin a document, which YAML allows to
//! stand nowhere else. So a document that is broken takes none of its
//! neighbours with it, and one that nobody asks for is never parsed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number};
use serde_saphyr::{NonFiniteFloatPolicy, Options, Spanned};

use super::error::{CardError, Problem, cropped, described};
use super::fields::Written;
use super::name::CardName;
use super::source::SourceKind;
use super::value::{Field, Origin, Place, Value};

/// How deep maps and lists may lie in each other.
const MAX_DEPTH: usize = 48;
/// How many values there may be in a document.
const MAX_NODES: usize = 50_000;
/// How many of them may come from aliases.
const MAX_REPLAYED: usize = 20_000;

/// A document of a file, or a card that was made without one.
#[derive(Debug)]
pub(super) struct Document {
    place: Place,
    content: Content,
    /// The name, if it can be told without parsing the rest.
    glimpsed: Option<Arc<str>>,
    parsed: OnceLock<Result<Parsed, Problem>>,
}

#[derive(Debug)]
enum Content {
    Text(Arc<str>, Range<usize>),
    Json(Map<String, serde_json::Value>),
}

/// What was found in a document.
#[derive(Debug)]
pub(super) struct Parsed {
    pub name: Arc<str>,
    pub written: Result<Written, CardError>,
}

impl Document {
    /// The documents of a file.
    pub fn split(source: SourceKind, file: &Arc<Path>, text: &Arc<str>) -> Vec<Self> {
        let mut documents = Vec::new();
        let mut add = |range: Range<usize>, line: u32| {
            if text[range.clone()].lines().any(has_content) {
                documents.push(Self {
                    place: Place::new(source, file, line),
                    glimpsed: glimpse(&text[range.clone()]),
                    content: Content::Text(Arc::clone(text), range),
                    parsed: OnceLock::new(),
                });
            }
        };
        // A mark at the beginning of the file is no content.
        let mut start = text.len() - text.trim_start_matches('\u{feff}').len();
        let (mut start_line, mut offset, mut number) = (1, start, 0);
        for line in text[start..].split_inclusive('\n') {
            number += 1;
            match marker(line) {
                Some(Marker::Begin) => {
                    add(start..offset, start_line);
                    (start, start_line) = (offset, number);
                }
                Some(Marker::End) => {
                    add(start..offset, start_line);
                    (start, start_line) = (offset + line.len(), number + 1);
                }
                None => {}
            }
            offset += line.len();
        }
        add(start..offset, start_line);
        documents
    }

    /// A card that is in no file.
    pub fn made(source: SourceKind, file: &Arc<Path>, fields: Map<String, serde_json::Value>) -> Self {
        let place = Place::new(source, file, 0);
        Self { place, content: Content::Json(fields), glimpsed: None, parsed: OnceLock::new() }
    }

    /// Where it begins.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The name of its card. Parses only if it must.
    pub fn name(&self) -> Result<&Arc<str>, &Problem> {
        match &self.glimpsed {
            Some(name) => Ok(name),
            None => self.parsed().map(|parsed| &parsed.name),
        }
    }

    /// What stands in it.
    pub fn parsed(&self) -> Result<&Parsed, &Problem> {
        let parsed = self.parsed.get_or_init(|| {
            let parsed = self.parse()?;
            match &self.glimpsed {
                Some(name) if *name != parsed.name => Err(Problem::BadName {
                    place: self.place.clone(),
                    found: format!("`{}`, which looks like `{name}`,", parsed.name),
                }),
                _ => Ok(parsed),
            }
        });
        parsed.as_ref()
    }

    /// Whether somebody has asked for more than the name.
    #[cfg(test)]
    pub fn is_parsed(&self) -> bool {
        self.parsed.get().is_some()
    }

    fn parse(&self) -> Result<Parsed, Problem> {
        match &self.content {
            Content::Text(text, range) => {
                let text = &text[range.clone()];
                let raw = serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options());
                let raw = raw.map_err(|error| self.syntax(text, &error))?;
                let Raw::Map(map) = &raw.value else {
                    return Err(Problem::NoMap { place: self.place.clone(), found: raw.value.kind() });
                };
                let line_of = |key: &Spanned<String>| self.line(key.referenced.line());
                let named = map.iter().find(|(key, _)| key.value == "name");
                let place = self.place.at(named.map_or(self.line(1), |(key, _)| line_of(key)));
                let name = named.map(|(_, value)| value.value.scalar(text, value));
                let name = self.check_name(name, place)?;
                let reader = Reader { text, name: &name, document: self };
                let map =
                    map.iter().map(|(key, value)| (key.value.clone(), reader.field(value, line_of(key))));
                let written = Written::read(map.collect());
                Ok(Parsed { name, written })
            }
            Content::Json(json) => {
                let place = self.place.clone();
                let unnamed = Origin::new(&Arc::from(""), place.clone());
                let name = json.get("name").map(|name| Field::from_json(name, &unnamed).value);
                let name = self.check_name(name, place.clone())?;
                let origin = Origin::new(&name, place);
                let map = json.iter().map(|(key, value)| (key.clone(), Field::from_json(value, &origin)));
                let written = Written::read(map.collect::<BTreeMap<_, _>>());
                Ok(Parsed { name, written })
            }
        }
    }

    fn check_name(&self, name: Option<Value>, place: Place) -> Result<Arc<str>, Problem> {
        let name = name.ok_or_else(|| Problem::NoName { place: place.clone() })?;
        let is_name = |name: &&str| CardName::parse(name).is_some() && !name.ends_with('@');
        match name.as_text().filter(is_name) {
            Some(name) => Ok(Arc::from(name)),
            None => Err(Problem::BadName { place, found: described(&name) }),
        }
    }

    /// A line of the document as a line of the file.
    fn line(&self, line: u64) -> u32 {
        let within = u32::try_from(line.saturating_sub(1)).unwrap_or(0);
        (self.place.line() as u32).saturating_add(within)
    }

    fn syntax(&self, text: &str, error: &serde_saphyr::Error) -> Problem {
        let line = error.location().map_or(1, |location| location.line().max(1));
        let snippet = text.lines().nth(line as usize - 1).map(cropped).unwrap_or_default();
        let message = error.to_string();
        // The place says where.
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        // What a program may set is no advice for those who write cards.
        let message = message.split(", set DuplicateKeyPolicy").next().unwrap_or_default();
        Problem::Syntax { place: self.place.at(self.line(line)), message: cropped(message), snippet }
    }
}

enum Marker {
    Begin,
    End,
}

fn marker(line: &str) -> Option<Marker> {
    let (mark, rest) = line.split_at_checked(3)?;
    let ends = rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']);
    match mark {
        "---" if ends => Some(Marker::Begin),
        "..." if ends => Some(Marker::End),
        _ => None,
    }
}

/// Whether a line is more than a comment, a directive or a bare marker.
fn has_content(line: &str) -> bool {
    let line = line.strip_prefix("---").filter(|_| marker(line).is_some()).unwrap_or(line).trim();
    !line.is_empty() && !line.starts_with(['#', '%'])
}

/// The name of a card whose keys all stand at the beginnings of lines, and
/// whose name is a plain word. All that looks different has to be parsed.
fn glimpse(text: &str) -> Option<Arc<str>> {
    let mut found = None;
    for line in text.lines() {
        if line.is_empty() || line.starts_with([' ', '#']) || matches!(line.trim_end(), "---") {
            continue;
        }
        let (key, value) = line.split_once(':')?;
        let is_key = |key: &str| key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if key.is_empty() || !is_key(key) {
            return None;
        }
        if key == "name" {
            let value = value.split(" #").next().unwrap_or_default().trim_matches(' ');
            // What begins with a letter is no number; `null` is no name.
            let plain = value.starts_with(|c: char| c.is_ascii_alphabetic())
                && !["null", "true", "false"].contains(&value.to_ascii_lowercase().as_str())
                && CardName::parse(value).is_some()
                && !value.ends_with('@');
            if !plain || found.replace(value).is_some() {
                return None;
            }
        }
    }
    found.map(Arc::from)
}

fn options() -> Options {
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
    options
}

/// A value as the parser gives it.
#[derive(Debug)]
enum Raw {
    Nothing,
    Bool(bool),
    Number(Option<Number>),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl Raw {
    fn kind(&self) -> super::value::Kind {
        use super::value::Kind;
        match self {
            Self::Nothing => Kind::Nothing,
            Self::Bool(_) => Kind::Bool,
            Self::Number(_) => Kind::Number,
            Self::Text(_) => Kind::Text,
            Self::List(_) => Kind::List,
            Self::Map(_) => Kind::Map,
        }
    }

    /// The value, if it is neither list nor map; those are empty.
    fn scalar(&self, text: &str, spanned: &Spanned<Self>) -> Value {
        match self {
            Self::Nothing => Value::Nothing,
            Self::Bool(value) => Value::Bool(*value),
            Self::Text(text) => Value::Text(text.clone()),
            Self::Number(number) => {
                let span = spanned.defined.span();
                let written = span.byte_offset().zip(span.byte_len()).and_then(|(start, length)| {
                    text.get(usize::try_from(start).ok()?..usize::try_from(start + length).ok()?)
                });
                match (number, written) {
                    (Some(number), Some(written)) => {
                        Value::Number { number: number.clone(), written: written.trim().to_owned() }
                    }
                    (Some(number), None) => {
                        Value::Number { number: number.clone(), written: number.to_string() }
                    }
                    (None, written) => Value::Text(written.unwrap_or_default().trim().to_owned()),
                }
            }
            Self::List(_) => Value::List(Vec::new()),
            Self::Map(_) => Value::Map(BTreeMap::new()),
        }
    }
}

/// Gives values their origins.
struct Reader<'a> {
    text: &'a str,
    name: &'a Arc<str>,
    document: &'a Document,
}

impl Reader<'_> {
    fn field(&self, raw: &Spanned<Raw>, line: u32) -> Field {
        let value = match &raw.value {
            Raw::List(values) => {
                let values =
                    values.iter().map(|value| self.field(value, self.document.line(value.referenced.line())));
                Value::List(values.collect())
            }
            Raw::Map(map) => {
                let pairs = map.iter().map(|(key, value)| {
                    let line = self.document.line(key.referenced.line());
                    (key.value.clone(), self.field(value, line))
                });
                Value::Map(pairs.collect())
            }
            scalar => scalar.scalar(self.text, raw),
        };
        Field { value, origin: Origin::new(self.name, self.document.place.at(line)) }
    }
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
        Ok(Raw::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Number(Some(value.into())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Number(Some(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Number(Number::from_f64(value)))
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
