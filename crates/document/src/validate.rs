//! Validates a document against its schema.

use serde_json::{Map, Number, Value};
use weightloom_errors::nearest;

use crate::error::{DocumentError, Problem, Remedy};
use crate::node::{Content, Entry, Node, truncate};
use crate::origin::{Mark, Sources};
use crate::schema::{Key, Kind, Nullable, Section};
use crate::variables::parse_scalar;

/// Converts nodes to JSON and collects the errors in them.
#[allow(missing_docs)]
pub struct Validator<'a, R> {
    pub sources: Sources<'a>,
    /// The schema of the whole document.
    pub schema: &'a Section,
    pub errors: Vec<DocumentError<R>>,
    /// Full keys that have an error, or that a misspelled key may mean. Rules
    /// about them cannot be checked.
    pub suspect_paths: Vec<String>,
    coercion: Coercion,
}

/// Which values are accepted as numbers and booleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coercion {
    /// Only values of that type.
    Strict,
    /// Also strings and numbers that read like one: `"3"`, `yes`, `1`. Only a
    /// string is accepted as a string.
    Lenient,
}

/// Appends a key to a path.
pub fn join_path(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl<'a, R> Validator<'a, R> {
    /// Creates a validator without errors.
    pub fn new(sources: Sources<'a>, schema: &'a Section, coercion: Coercion) -> Self {
        Self { sources, schema, errors: Vec::new(), suspect_paths: Vec::new(), coercion }
    }

    /// Adds an error.
    pub fn report(&mut self, mark: Mark, path: &str, problem: Problem<R>) {
        // The path is empty for an override without a key.
        if !path.is_empty() {
            self.suspect_paths.push(path.to_owned());
        }
        let origin = self.sources.origin(mark);
        self.errors.push(DocumentError { origin, path: path.to_owned(), problem });
    }

    /// Converts a section to a JSON object.
    ///
    /// Leaves out invalid optional keys and fills in placeholders for invalid
    /// required ones, so that the rest can still be deserialized and checked.
    pub fn check_section(&mut self, section: &Section, node: &Node, mark: Mark, path: &str) -> Option<Value> {
        let none = Vec::new();
        let map = match &node.content {
            Content::Map(map) => map,
            // A section with all defaults.
            Content::Null => &none,
            _ => return self.wrong_type("a map".to_owned(), None, node, path),
        };
        self.check_duplicates(map, path);
        let mut values = Map::new();
        for entry in map {
            let inner = join_path(path, &entry.key);
            match section.key(&entry.key) {
                None => {
                    let problem = unknown_key(self.schema, section, &entry.key);
                    if let Problem::UnknownKey { near: Some(near), .. } = &problem {
                        self.suspect_paths.push(join_path(path, near));
                    }
                    self.report(entry.mark, &inner, problem);
                }
                Some(key) => {
                    if let Some(value) = self.key(key, entry, &inner) {
                        values.insert(entry.key.clone(), value);
                    }
                }
            }
        }
        for key in section.keys.iter().filter(|key| key.default.is_none()) {
            if !map.iter().any(|entry| entry.key == key.name) {
                let problem = Problem::Missing { description: key.description.clone() };
                self.report(mark, &join_path(path, &key.name), problem);
            }
            values.entry(key.name.clone()).or_insert_with(|| placeholder(&key.kind));
        }
        Some(Value::Object(values))
    }

    fn key(&mut self, key: &Key, entry: &Entry, path: &str) -> Option<Value> {
        match (&entry.value.content, key.nullable) {
            (Content::Null, Nullable::Yes) => Some(Value::Null),
            _ => self.value(&key.kind, &entry.value, entry.mark, path),
        }
    }

    fn value(&mut self, kind: &Kind, node: &Node, mark: Mark, path: &str) -> Option<Value> {
        let coerced = match self.coercion {
            Coercion::Strict => None,
            Coercion::Lenient => coerce(kind, &node.content),
        };
        match (kind, coerced.as_ref().unwrap_or(&node.content)) {
            (Kind::StringOrList(items), Content::List(_)) => {
                self.value(&Kind::List(items.clone(), None), node, mark, path)
            }
            (Kind::StringOrList(_), Content::String { .. }) => self.value(&Kind::String, node, mark, path),
            (Kind::Section(section), _) => self.check_section(section, node, mark, path),
            (Kind::Map(values), Content::Map(map)) => {
                self.check_duplicates(map, path);
                let pairs: Vec<Option<(String, Value)>> = map
                    .iter()
                    .map(|entry| {
                        let path = join_path(path, &entry.key);
                        Some((entry.key.clone(), self.value(values, &entry.value, entry.mark, &path)?))
                    })
                    .collect();
                pairs.into_iter().collect::<Option<Map<String, Value>>>().map(Value::Object)
            }
            (Kind::List(items, length), Content::List(list)) => {
                if let Some(expected) = length.filter(|length| *length != list.len()) {
                    self.report(node.mark, path, Problem::WrongLength { found: list.len(), expected });
                    return None;
                }
                // Collected before the first failure stops it: every item is checked.
                let values: Vec<Option<Value>> = list
                    .iter()
                    .enumerate()
                    .map(|(index, item)| {
                        self.value(items, item, item.mark, &join_path(path, &index.to_string()))
                    })
                    .collect();
                values.into_iter().collect::<Option<Vec<Value>>>().map(Value::Array)
            }
            (Kind::String, Content::String { text, .. }) => Some(Value::String(text.clone())),
            (Kind::Bool | Kind::BoolOrChoice(_), Content::Bool(value)) => Some(Value::Bool(*value)),
            (Kind::BoolOrChoice(choices), Content::String { text, .. })
                if choices.iter().any(|choice| choice.name == *text) =>
            {
                Some(Value::String(text.clone()))
            }
            (Kind::Integer { min, max }, content @ (Content::Integer(_) | Content::Float(_))) => {
                let Some(integer) = integer(content) else {
                    return self.wrong_type(kind.expected(), None, node, path);
                };
                let number = Number::from_i128(integer).filter(|_| (*min..=*max).contains(&integer));
                if number.is_none() {
                    let found = integer.to_string();
                    self.report(node.mark, path, Problem::OutOfRange { found, min: *min, max: *max });
                }
                number.map(Value::Number)
            }
            (Kind::Number, Content::Integer(value)) => Some(Value::from(*value as f64)),
            (Kind::Number, Content::Float(value)) => match Number::from_f64(*value) {
                Some(number) => Some(Value::Number(number)),
                None => self.wrong_type("a finite number".to_owned(), None, node, path),
            },
            (Kind::Choice(choices), _) => {
                let names = choices.iter().map(|choice| choice.name.as_str());
                let found = match &node.content {
                    Content::String { text, .. } => text.clone(),
                    // A name that YAML parses as something else.
                    Content::Bool(value) => value.to_string(),
                    Content::Integer(value) => value.to_string(),
                    _ => return self.wrong_type(kind.expected(), None, node, path),
                };
                if names.clone().any(|name| name == found) {
                    return Some(Value::String(found));
                }
                let near = nearest(&found, names.clone()).map(str::to_owned);
                let choices = names.map(str::to_owned).collect();
                let found = format!("`{}`", truncate(&found));
                self.report(node.mark, path, Problem::UnknownChoice { found, near, choices });
                None
            }
            (Kind::Any, _) => self.to_json(node, path),
            _ => self.wrong_type(kind.expected(), remedy(kind, node), node, path),
        }
    }

    /// Converts a node of any type to JSON.
    pub fn to_json(&mut self, node: &Node, path: &str) -> Option<Value> {
        Some(match &node.content {
            Content::Null => Value::Null,
            Content::Bool(value) => Value::Bool(*value),
            Content::Integer(value) => {
                return Number::from_i128(*value).map(Value::Number).or_else(|| {
                    let (min, max) = (i64::MIN.into(), u64::MAX.into());
                    self.report(node.mark, path, Problem::OutOfRange { found: value.to_string(), min, max });
                    None
                });
            }
            Content::Float(value) => match Number::from_f64(*value) {
                Some(number) => Value::Number(number),
                None => return self.wrong_type("a finite number".to_owned(), None, node, path),
            },
            Content::String { text, .. } => Value::String(text.clone()),
            Content::List(list) => {
                let values = list.iter().enumerate();
                let values: Vec<Option<Value>> = values
                    .map(|(index, node)| self.to_json(node, &join_path(path, &index.to_string())))
                    .collect();
                return values.into_iter().collect::<Option<Vec<Value>>>().map(Value::Array);
            }
            Content::Map(map) => {
                self.check_duplicates(map, path);
                let values: Vec<Option<(String, Value)>> = map
                    .iter()
                    .map(|entry| {
                        let value = self.to_json(&entry.value, &join_path(path, &entry.key))?;
                        Some((entry.key.clone(), value))
                    })
                    .collect();
                return values.into_iter().collect::<Option<Map<String, Value>>>().map(Value::Object);
            }
        })
    }

    fn check_duplicates(&mut self, map: &[Entry], path: &str) {
        for (index, entry) in map.iter().enumerate() {
            if map[..index].iter().any(|earlier| earlier.key == entry.key) {
                self.report(entry.mark, &join_path(path, &entry.key), Problem::DuplicateKey);
            }
        }
    }

    fn wrong_type(
        &mut self,
        expected: String,
        remedy: Option<Remedy>,
        node: &Node,
        path: &str,
    ) -> Option<Value> {
        let remedy = match node.content {
            Content::Null => Some(Remedy::LeaveOut),
            _ => remedy,
        };
        self.report(node.mark, path, Problem::WrongType { expected, found: node.describe(), remedy });
        None
    }
}

/// The value of a number without a fraction, however it is written: `1e3` is
/// 1000.
fn integer(content: &Content) -> Option<i128> {
    match content {
        Content::Integer(value) => Some(*value),
        Content::Float(value) if value.fract() == 0.0 && value.abs() < 1e30 => Some(*value as i128),
        _ => None,
    }
}

/// Suggests how to turn a value into one of the expected type.
fn remedy(kind: &Kind, node: &Node) -> Option<Remedy> {
    let written = match &node.content {
        Content::Bool(value) => value.to_string(),
        Content::Integer(value) => value.to_string(),
        Content::Float(value) => value.to_string(),
        Content::String { text, .. } => text.clone(),
        _ => return None,
    };
    let is_string = matches!(node.content, Content::String { .. });
    match kind {
        Kind::String | Kind::StringOrList(_) if !is_string => {
            Some(Remedy::Quote { text: format!("\"{written}\"") })
        }
        Kind::Bool | Kind::BoolOrChoice(_) if is_string => match written.to_lowercase().as_str() {
            "yes" | "y" | "on" | "true" => Some(Remedy::Write { text: "true".to_owned() }),
            "no" | "n" | "off" | "false" => Some(Remedy::Write { text: "false".to_owned() }),
            _ => None,
        },
        Kind::Bool | Kind::BoolOrChoice(_) => match written.as_str() {
            "1" => Some(Remedy::Write { text: "true".to_owned() }),
            "0" => Some(Remedy::Write { text: "false".to_owned() }),
            _ => None,
        },
        Kind::Integer { .. } | Kind::Number if is_string => match parse_scalar(&written) {
            Content::Integer(_) | Content::Float(_) => Some(Remedy::Unquote { text: truncate(&written) }),
            _ => None,
        },
        Kind::List(items, None) => {
            let fits = match **items {
                Kind::String | Kind::StringOrList(_) => is_string,
                Kind::Integer { .. } | Kind::Number => !is_string,
                _ => false,
            };
            let text =
                if is_string { format!("[\"{}\"]", truncate(&written)) } else { format!("[{written}]") };
            fits.then_some(Remedy::List { text })
        }
        _ => None,
    }
}

/// Converts a value that reads like one of the expected type.
fn coerce(kind: &Kind, content: &Content) -> Option<Content> {
    match (kind, content) {
        (Kind::Integer { .. } | Kind::Number, Content::String { text, .. }) => match parse_scalar(text) {
            number @ (Content::Integer(_) | Content::Float(_)) => Some(number),
            _ => None,
        },
        (Kind::Integer { .. } | Kind::Number, Content::Bool(value)) => {
            Some(Content::Integer((*value).into()))
        }
        (Kind::Bool | Kind::BoolOrChoice(_), Content::String { text, .. }) => {
            match text.to_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "on" | "1" => Some(Content::Bool(true)),
                "false" | "f" | "no" | "n" | "off" | "0" => Some(Content::Bool(false)),
                _ => None,
            }
        }
        (Kind::Bool, Content::Integer(0)) => Some(Content::Bool(false)),
        (Kind::Bool, Content::Integer(1)) => Some(Content::Bool(true)),
        (Kind::Bool, Content::Float(value)) if *value == 0.0 || *value == 1.0 => {
            Some(Content::Bool(*value == 1.0))
        }
        _ => None,
    }
}

/// Describes an unknown key of a section, with similar and like-named keys.
pub fn unknown_key<R>(schema: &Section, section: &Section, key: &str) -> Problem<R> {
    let known: Vec<String> = section.keys.iter().map(|key| key.name.clone()).collect();
    let near = nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
    let elsewhere = schema
        .paths()
        .into_iter()
        .filter(|path| path.rsplit_once('.').is_some_and(|(_, last)| last == key))
        .collect();
    Problem::UnknownKey { near, elsewhere, known }
}

/// A value of the right type for a key without a usable one.
fn placeholder(kind: &Kind) -> Value {
    match kind {
        Kind::Section(section) => {
            let keys = section.keys.iter().filter(|key| key.default.is_none());
            Value::Object(keys.map(|key| (key.name.clone(), placeholder(&key.kind))).collect())
        }
        Kind::Map(_) => Value::Object(Map::new()),
        Kind::List(_, _) => Value::Array(Vec::new()),
        Kind::Choice(choices) => choices.first().map(|choice| choice.name.clone()).into(),
        Kind::String | Kind::StringOrList(_) => "?".into(),
        Kind::Bool | Kind::BoolOrChoice(_) => false.into(),
        Kind::Integer { .. } | Kind::Number => 1.into(),
        Kind::Any => Value::Null,
    }
}
