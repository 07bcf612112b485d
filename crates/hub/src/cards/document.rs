//! A YAML document with one card, parsed on first use.
//!
//! Files are split at document markers, which YAML allows nowhere else. So an
//! invalid document does not affect its neighbours, and unused ones are never
//! parsed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Number};
use weightloom_document::{Content, Entry, Mark, Node, Rejected, SyntaxError};

use super::error::{CardError, SourceProblem, described, excerpt};
use super::fields::Written;
use super::name::CardName;
use super::source::SourceKind;
use super::value::{CardLocation, Field, Origin, Value};

/// A document of a file, or a card created in code.
#[derive(Debug)]
pub(super) struct Document {
    location: CardLocation,
    form: Form,
    /// The name, if it is known without parsing.
    glimpsed: Option<Arc<str>>,
    parsed: OnceLock<Result<Parsed, SourceProblem>>,
}

#[derive(Debug)]
enum Form {
    Text(Arc<str>, Range<usize>),
    Json(Map<String, serde_json::Value>),
}

/// A parsed document.
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
                    location: CardLocation::new(source, file, line),
                    glimpsed: glimpse(&text[range.clone()]),
                    form: Form::Text(Arc::clone(text), range),
                    parsed: OnceLock::new(),
                });
            }
        };
        // A byte order mark is not content.
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

    /// A card without a file.
    pub fn made(source: SourceKind, file: &Arc<Path>, fields: Map<String, serde_json::Value>) -> Self {
        let location = CardLocation::new(source, file, 0);
        Self { location, form: Form::Json(fields), glimpsed: None, parsed: OnceLock::new() }
    }

    /// The first line.
    pub fn location(&self) -> &CardLocation {
        &self.location
    }

    /// The name of the card; parses only if necessary.
    pub fn name(&self) -> Result<&Arc<str>, &SourceProblem> {
        match &self.glimpsed {
            Some(name) => Ok(name),
            None => self.parsed().map(|parsed| &parsed.name),
        }
    }

    /// The parsed contents.
    pub fn parsed(&self) -> Result<&Parsed, &SourceProblem> {
        let parsed = self.parsed.get_or_init(|| {
            let parsed = self.parse()?;
            match &self.glimpsed {
                Some(name) if *name != parsed.name => Err(SourceProblem::BadName {
                    location: self.location.clone(),
                    found: format!("`{}`, which looks like `{name}`,", parsed.name),
                }),
                _ => Ok(parsed),
            }
        });
        parsed.as_ref()
    }

    /// Whether the document has been parsed.
    #[cfg(test)]
    pub fn is_parsed(&self) -> bool {
        self.parsed.get().is_some()
    }

    fn parse(&self) -> Result<Parsed, SourceProblem> {
        match &self.form {
            Form::Text(text, range) => {
                let text = &text[range.clone()];
                let read = Node::parse_rejecting(text, Rejected::DuplicateKeys);
                let node = read.map_err(|error| self.syntax(text, error))?;
                let found = scalar(&node).kind();
                let Content::Map(map) = node.content else {
                    return Err(SourceProblem::NoMap { location: self.location.clone(), found });
                };
                let named = map.iter().find(|entry| entry.key == "name");
                let location =
                    named.map_or(self.location.clone(), |entry| self.location.at(self.line(entry.mark)));
                let name = self.check_name(named.map(|entry| scalar(&entry.value)), location)?;
                let reader = Reader { name: &name, document: self };
                let written = Written::read(map.into_iter().map(|entry| reader.entry(entry)).collect());
                Ok(Parsed { name, written })
            }
            Form::Json(json) => {
                let location = self.location.clone();
                let unnamed = Origin::new(&Arc::from(""), location.clone());
                let name = json.get("name").map(|name| Field::from_json(name, &unnamed).value);
                let name = self.check_name(name, location.clone())?;
                let origin = Origin::new(&name, location);
                let map = json.iter().map(|(key, value)| (key.clone(), Field::from_json(value, &origin)));
                let written = Written::read(map.collect::<BTreeMap<_, _>>());
                Ok(Parsed { name, written })
            }
        }
    }

    fn check_name(&self, name: Option<Value>, location: CardLocation) -> Result<Arc<str>, SourceProblem> {
        let name = name.ok_or_else(|| SourceProblem::NoName { location: location.clone() })?;
        let is_name = |name: &&str| CardName::parse(name).is_some() && !name.ends_with('@');
        match name.as_text().filter(is_name) {
            Some(name) => Ok(Arc::from(name)),
            None => Err(SourceProblem::BadName { location, found: described(&name) }),
        }
    }

    /// A position in the document as a line of the file.
    fn line(&self, mark: Mark) -> u32 {
        let within = match mark {
            Mark::At { line, .. } => u32::try_from(line.saturating_sub(1)).unwrap_or(0),
            Mark::Override(_) | Mark::Default => 0,
        };
        (self.location.line() as u32).saturating_add(within)
    }

    fn syntax(&self, text: &str, error: SyntaxError) -> SourceProblem {
        let SyntaxError { line, column, message, .. } = error;
        let snippet = text.lines().nth(line as usize - 1).map(excerpt).unwrap_or_default();
        SourceProblem::Syntax {
            location: self.location.at(self.line(Mark::At { line, column })),
            message,
            snippet,
        }
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

/// Whether a line has content beyond a comment, directive or marker.
fn has_content(line: &str) -> bool {
    let line = line.strip_prefix("---").filter(|_| marker(line).is_some()).unwrap_or(line).trim();
    !line.is_empty() && !line.starts_with(['#', '%'])
}

/// The name of a card in plain block style with a plain word as its name.
/// Anything else has to be parsed.
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
            // A word that starts with a letter is not a number; `null` is not a name.
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

/// Adds origins to values.
struct Reader<'a> {
    name: &'a Arc<str>,
    document: &'a Document,
}

impl Reader<'_> {
    fn entry(&self, entry: Entry) -> (String, Field) {
        (entry.key, self.field(entry.value, entry.mark))
    }

    fn field(&self, node: Node, mark: Mark) -> Field {
        let value = match node.content {
            Content::List(list) => {
                let values = list.into_iter().map(|node| {
                    let mark = node.mark;
                    self.field(node, mark)
                });
                Value::List(values.collect())
            }
            Content::Map(map) => Value::Map(map.into_iter().map(|entry| self.entry(entry)).collect()),
            _ => scalar(&node),
        };
        Field { value, origin: Origin::new(self.name, self.document.location.at(self.document.line(mark))) }
    }
}

/// A scalar value; lists and maps are returned empty.
fn scalar(node: &Node) -> Value {
    let number = |number: Option<Number>| match (number, node.number_text.clone()) {
        (Some(number), Some(written)) => Value::Number { number, written },
        (Some(number), None) => Value::Number { written: number.to_string(), number },
        (None, written) => Value::Text(written.unwrap_or_default()),
    };
    match &node.content {
        Content::Null => Value::Nothing,
        Content::Bool(value) => Value::Bool(*value),
        Content::Integer(value) => number(Number::from_i128(*value)),
        Content::Float(value) => number(Number::from_f64(*value)),
        Content::String { text, .. } => Value::Text(text.clone()),
        Content::List(_) => Value::List(Vec::new()),
        Content::Map(_) => Value::Map(BTreeMap::new()),
    }
}
