//! Whether values are what the keys hold: everything that is not, and what the
//! types can be made of.

use serde_json::{Map, Number, Value};
use shardloom_layout::nearest;

use super::fault::{ConfigFault, Problem, Remedy};
use super::outline::{Key, Kind, Nullable, Section};
use super::place::{Mark, Texts};
use super::tree::{Content, Entry, Node, cropped};
use super::variable::plain;

/// Compares values with what is wanted.
pub(super) struct Conformity<'a> {
    pub texts: Texts<'a>,
    pub faults: Vec<ConfigFault>,
    /// Paths at which something is wrong or could be meant, so that nothing
    /// that depends on them can be judged.
    pub unsure: Vec<String>,
}

/// A path with one key more.
pub(super) fn inside(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl<'a> Conformity<'a> {
    pub(super) fn new(texts: Texts<'a>) -> Self {
        Self { texts, faults: Vec::new(), unsure: Vec::new() }
    }

    pub(super) fn fault(&mut self, mark: Mark, path: &str, problem: Problem) {
        // An override without a key says nothing about any.
        if !path.is_empty() {
            self.unsure.push(path.to_owned());
        }
        let place = self.texts.place(mark);
        self.faults.push(ConfigFault { place, path: path.to_owned(), problem });
    }

    /// The keys of a section. What is wrong is left out, or replaced by
    /// something of the right kind where it must not be missing.
    pub(super) fn section(
        &mut self,
        section: &Section,
        node: &Node,
        mark: Mark,
        path: &str,
    ) -> Option<Value> {
        let none = Vec::new();
        let map = match &node.content {
            Content::Map(map) => map,
            // A section of which nothing is said.
            Content::Nothing => &none,
            _ => return self.wrong_kind("a map".to_owned(), None, node, path),
        };
        self.twice(map, path);
        let mut values = Map::new();
        for entry in map {
            let inner = inside(path, &entry.key);
            match section.key(&entry.key) {
                None => {
                    let problem = unknown_key(section, &entry.key);
                    if let Problem::UnknownKey { near: Some(near), .. } = &problem {
                        self.unsure.push(inside(path, near));
                    }
                    self.fault(entry.mark, &inner, problem);
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
                let problem = Problem::Missing { meaning: key.meaning.clone() };
                self.fault(mark, &inside(path, &key.name), problem);
            }
            values.entry(key.name.clone()).or_insert_with(|| stand_in(&key.kind));
        }
        Some(Value::Object(values))
    }

    fn key(&mut self, key: &Key, entry: &Entry, path: &str) -> Option<Value> {
        match (&entry.value.content, key.nullable) {
            (Content::Nothing, Nullable::Yes) => Some(Value::Null),
            _ => self.value(&key.kind, &entry.value, entry.mark, path),
        }
    }

    fn value(&mut self, kind: &Kind, node: &Node, mark: Mark, path: &str) -> Option<Value> {
        match (kind, &node.content) {
            (Kind::Section(section), _) => self.section(section, node, mark, path),
            (Kind::Map(values), Content::Map(map)) => {
                self.twice(map, path);
                let pairs: Vec<Option<(String, Value)>> = map
                    .iter()
                    .map(|entry| {
                        let path = inside(path, &entry.key);
                        Some((entry.key.clone(), self.value(values, &entry.value, entry.mark, &path)?))
                    })
                    .collect();
                pairs.into_iter().collect::<Option<Map<String, Value>>>().map(Value::Object)
            }
            (Kind::List(items, length), Content::List(list)) => {
                if let Some(expected) = length.filter(|length| *length != list.len()) {
                    self.fault(node.mark, path, Problem::Length { found: list.len(), expected });
                    return None;
                }
                // All of them are looked at, so that all faults are told.
                let values: Vec<Option<Value>> = list
                    .iter()
                    .enumerate()
                    .map(|(index, item)| {
                        self.value(items, item, item.mark, &inside(path, &index.to_string()))
                    })
                    .collect();
                values.into_iter().collect::<Option<Vec<Value>>>().map(Value::Array)
            }
            (Kind::Text, Content::Text { text, .. }) => Some(Value::String(text.clone())),
            (Kind::Bool, Content::Bool(value)) => Some(Value::Bool(*value)),
            (Kind::Whole { least, most }, Content::Whole(_) | Content::Decimal(_)) => {
                let Some(whole) = whole(&node.content) else {
                    return self.wrong_kind(kind.expected(), None, node, path);
                };
                let number = Number::from_i128(whole).filter(|_| (*least..=*most).contains(&whole));
                if number.is_none() {
                    let found = whole.to_string();
                    self.fault(node.mark, path, Problem::Range { found, least: *least, most: *most });
                }
                number.map(Value::Number)
            }
            (Kind::Number, Content::Whole(value)) => Some(Value::from(*value as f64)),
            (Kind::Number, Content::Decimal(value)) => match Number::from_f64(*value) {
                Some(number) => Some(Value::Number(number)),
                None => self.wrong_kind("a finite number".to_owned(), None, node, path),
            },
            (Kind::Choice(choices), _) => {
                let names = choices.iter().map(|choice| choice.name.as_str());
                let found = match &node.content {
                    Content::Text { text, .. } => text.clone(),
                    // A word that YAML takes for something else.
                    Content::Bool(value) => value.to_string(),
                    Content::Whole(value) => value.to_string(),
                    _ => return self.wrong_kind(kind.expected(), None, node, path),
                };
                if names.clone().any(|name| name == found) {
                    return Some(Value::String(found));
                }
                let near = nearest(&found, names.clone()).map(str::to_owned);
                let choices = names.map(str::to_owned).collect();
                let found = format!("`{}`", cropped(&found));
                self.fault(node.mark, path, Problem::Choice { found, near, choices });
                None
            }
            (Kind::Anything, _) => self.anything(node, path),
            _ => self.wrong_kind(kind.expected(), remedy(kind, node), node, path),
        }
    }

    /// Any value, as JSON.
    fn anything(&mut self, node: &Node, path: &str) -> Option<Value> {
        Some(match &node.content {
            Content::Nothing => Value::Null,
            Content::Bool(value) => Value::Bool(*value),
            Content::Whole(value) => {
                return Number::from_i128(*value).map(Value::Number).or_else(|| {
                    let (least, most) = (i64::MIN.into(), u64::MAX.into());
                    self.fault(node.mark, path, Problem::Range { found: value.to_string(), least, most });
                    None
                });
            }
            Content::Decimal(value) => match Number::from_f64(*value) {
                Some(number) => Value::Number(number),
                None => return self.wrong_kind("a finite number".to_owned(), None, node, path),
            },
            Content::Text { text, .. } => Value::String(text.clone()),
            Content::List(list) => {
                let values = list.iter().enumerate();
                let values: Vec<Option<Value>> = values
                    .map(|(index, node)| self.anything(node, &inside(path, &index.to_string())))
                    .collect();
                return values.into_iter().collect::<Option<Vec<Value>>>().map(Value::Array);
            }
            Content::Map(map) => {
                self.twice(map, path);
                let values: Vec<Option<(String, Value)>> = map
                    .iter()
                    .map(|entry| {
                        let value = self.anything(&entry.value, &inside(path, &entry.key))?;
                        Some((entry.key.clone(), value))
                    })
                    .collect();
                return values.into_iter().collect::<Option<Map<String, Value>>>().map(Value::Object);
            }
        })
    }

    fn twice(&mut self, map: &[Entry], path: &str) {
        for (index, entry) in map.iter().enumerate() {
            if map[..index].iter().any(|earlier| earlier.key == entry.key) {
                self.fault(entry.mark, &inside(path, &entry.key), Problem::Twice);
            }
        }
    }

    fn wrong_kind(
        &mut self,
        expected: String,
        remedy: Option<Remedy>,
        node: &Node,
        path: &str,
    ) -> Option<Value> {
        let remedy = match node.content {
            Content::Nothing => Some(Remedy::LeaveOut),
            _ => remedy,
        };
        self.fault(node.mark, path, Problem::Kind { expected, found: node.shown(), remedy });
        None
    }
}

/// A number without a fraction, however it is written: `1e3` is 1000.
fn whole(content: &Content) -> Option<i128> {
    match content {
        Content::Whole(value) => Some(*value),
        Content::Decimal(value) if value.fract() == 0.0 && value.abs() < 1e30 => Some(*value as i128),
        _ => None,
    }
}

/// How a value could be meant.
fn remedy(kind: &Kind, node: &Node) -> Option<Remedy> {
    let written = match &node.content {
        Content::Bool(value) => value.to_string(),
        Content::Whole(value) => value.to_string(),
        Content::Decimal(value) => value.to_string(),
        Content::Text { text, .. } => text.clone(),
        _ => return None,
    };
    let is_text = matches!(node.content, Content::Text { .. });
    match kind {
        Kind::Text if !is_text => Some(Remedy::Quote { text: format!("\"{written}\"") }),
        Kind::Bool if is_text => match written.to_lowercase().as_str() {
            "yes" | "y" | "on" | "true" => Some(Remedy::Write { text: "true".to_owned() }),
            "no" | "n" | "off" | "false" => Some(Remedy::Write { text: "false".to_owned() }),
            _ => None,
        },
        Kind::Bool => match written.as_str() {
            "1" => Some(Remedy::Write { text: "true".to_owned() }),
            "0" => Some(Remedy::Write { text: "false".to_owned() }),
            _ => None,
        },
        Kind::Whole { .. } | Kind::Number if is_text => match plain(&written) {
            Content::Whole(_) | Content::Decimal(_) => Some(Remedy::Unquote { text: cropped(&written) }),
            _ => None,
        },
        Kind::List(items, None) => {
            let fits = match **items {
                Kind::Text => is_text,
                Kind::Whole { .. } | Kind::Number => !is_text,
                _ => false,
            };
            let text = if is_text { format!("[\"{}\"]", cropped(&written)) } else { format!("[{written}]") };
            fits.then_some(Remedy::List { text })
        }
        _ => None,
    }
}

/// What is known of a key that is none.
pub(super) fn unknown_key(section: &Section, key: &str) -> Problem {
    let known: Vec<String> = section.keys.iter().map(|key| key.name.clone()).collect();
    let near = nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
    let elsewhere = Section::of_run()
        .paths()
        .into_iter()
        .filter(|path| path.rsplit_once('.').is_some_and(|(_, last)| last == key))
        .collect();
    Problem::UnknownKey { near, elsewhere, known }
}

/// Something of a kind, where nothing usable was given.
fn stand_in(kind: &Kind) -> Value {
    match kind {
        Kind::Section(section) => {
            let keys = section.keys.iter().filter(|key| key.default.is_none());
            Value::Object(keys.map(|key| (key.name.clone(), stand_in(&key.kind))).collect())
        }
        Kind::Map(_) => Value::Object(Map::new()),
        Kind::List(_, _) => Value::Array(Vec::new()),
        Kind::Choice(choices) => choices.first().map(|choice| choice.name.clone()).into(),
        Kind::Text => "?".into(),
        Kind::Bool => false.into(),
        Kind::Whole { .. } | Kind::Number => 1.into(),
        Kind::Anything => Value::Null,
    }
}
