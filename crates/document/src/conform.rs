//! Whether values are what the keys hold: everything that is not, and what the
//! types can be made of.

use serde_json::{Map, Number, Value};
use weightloom_errors::nearest;

use crate::fault::{Fault, Problem, Remedy};
use crate::outline::{Key, Kind, Nullable, Section};
use crate::place::{Mark, Texts};
use crate::tree::{Content, Entry, Node, cropped};
use crate::variable::plain;

/// Compares values with what is wanted.
pub struct Conformity<'a, R> {
    /// What marks mean.
    pub texts: Texts<'a>,
    /// What the whole file holds.
    pub outline: &'a Section,
    /// Everything that was found.
    pub faults: Vec<Fault<R>>,
    /// Paths at which something is wrong or could be meant, so that nothing
    /// that depends on them can be judged.
    pub unsure: Vec<String>,
    leniency: Leniency,
}

/// What is taken for a number, or for true and false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leniency {
    /// Only what is one.
    Strict,
    /// Also a text that reads like one, and the other way round for true and
    /// false: `"3"`, `yes`, `1`. A text is still only what is a text.
    Lenient,
}

/// A path with one key more.
pub fn inside(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl<'a, R> Conformity<'a, R> {
    /// Nothing is compared yet.
    pub fn new(texts: Texts<'a>, outline: &'a Section, leniency: Leniency) -> Self {
        Self { texts, outline, faults: Vec::new(), unsure: Vec::new(), leniency }
    }

    /// Notes a fault.
    pub fn fault(&mut self, mark: Mark, path: &str, problem: Problem<R>) {
        // An override without a key says nothing about any.
        if !path.is_empty() {
            self.unsure.push(path.to_owned());
        }
        let place = self.texts.place(mark);
        self.faults.push(Fault { place, path: path.to_owned(), problem });
    }

    /// The keys of a section. What is wrong is left out, or replaced by
    /// something of the right kind where it must not be missing.
    pub fn section(&mut self, section: &Section, node: &Node, mark: Mark, path: &str) -> Option<Value> {
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
                    let problem = unknown_key(self.outline, section, &entry.key);
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
        let lent = match self.leniency {
            Leniency::Strict => None,
            Leniency::Lenient => lenient(kind, &node.content),
        };
        match (kind, lent.as_ref().unwrap_or(&node.content)) {
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
            (Kind::Whole { least, most }, content @ (Content::Whole(_) | Content::Decimal(_))) => {
                let Some(whole) = whole(content) else {
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
    pub fn anything(&mut self, node: &Node, path: &str) -> Option<Value> {
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

/// What a value is taken for where one of a kind is wanted, if not for itself.
fn lenient(kind: &Kind, content: &Content) -> Option<Content> {
    match (kind, content) {
        (Kind::Whole { .. } | Kind::Number, Content::Text { text, .. }) => match plain(text) {
            number @ (Content::Whole(_) | Content::Decimal(_)) => Some(number),
            _ => None,
        },
        (Kind::Whole { .. } | Kind::Number, Content::Bool(value)) => Some(Content::Whole((*value).into())),
        (Kind::Bool, Content::Text { text, .. }) => match text.to_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(Content::Bool(true)),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(Content::Bool(false)),
            _ => None,
        },
        (Kind::Bool, Content::Whole(0)) => Some(Content::Bool(false)),
        (Kind::Bool, Content::Whole(1)) => Some(Content::Bool(true)),
        (Kind::Bool, Content::Decimal(value)) if *value == 0.0 || *value == 1.0 => {
            Some(Content::Bool(*value == 1.0))
        }
        _ => None,
    }
}

/// What is known of a key that is none.
pub fn unknown_key<R>(outline: &Section, section: &Section, key: &str) -> Problem<R> {
    let known: Vec<String> = section.keys.iter().map(|key| key.name.clone()).collect();
    let near = nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
    let elsewhere = outline
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use serde_json::json;

    use super::*;
    use crate::fault::NoRule;

    fn outline() -> Section {
        Section::of(&json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["count"],
            "properties": {
                "count": {"type": "integer", "format": "uint", "minimum": 2, "maximum": 9},
                "share": {"type": "number", "default": 0.5},
                "flag": {"type": "boolean", "default": false},
                "name": {"type": ["string", "null"]},
                "pairs": {
                    "type": "array",
                    "default": [],
                    "items": {
                        "type": "array",
                        "prefixItems": [{"type": "string"}, {"type": "string"}],
                        "minItems": 2,
                        "maxItems": 2,
                    },
                },
            },
        }))
        .unwrap()
    }

    fn check(text: &str, leniency: Leniency) -> (Option<Value>, Vec<Fault<NoRule>>) {
        let outline = outline();
        let node = Node::parse(text).unwrap();
        let mut check = Conformity::new(Texts { file: "f", overrides: &[] }, &outline, leniency);
        let value = check.section(&outline, &node, node.mark, "");
        (value, check.faults)
    }

    #[test]
    fn lenient_readers_take_what_reads_like_a_number() {
        for (text, expected) in [
            ("count: '3'", json!({"count": 3})),
            ("count: 3.0\nflag: yes", json!({"count": 3, "flag": true})),
            ("count: 3\nflag: 0", json!({"count": 3, "flag": false})),
            ("count: 3\nflag: 'OFF'\nshare: '1e-3'", json!({"count": 3, "flag": false, "share": 0.001})),
            ("count: 3\nshare: true", json!({"count": 3, "share": 1.0})),
            ("count: 3\nname: null", json!({"count": 3, "name": null})),
            ("count: 3\npairs: [[a, b]]", json!({"count": 3, "pairs": [["a", "b"]]})),
        ] {
            let (value, faults) = check(text, Leniency::Lenient);
            assert_eq!(faults, [], "{text}");
            assert_eq!(value.unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn lenient_readers_take_no_number_for_a_text_and_keep_bounds() {
        for text in [
            "count: 3\nname: 5",
            "count: 10",
            "count: 1",
            "count: three",
            "count: 3.5",
            "count: 3\npairs: [[a]]",
        ] {
            assert_eq!(check(text, Leniency::Lenient).1.len(), 1, "{text}");
        }
    }

    #[test]
    fn strict_readers_take_things_for_what_they_are() {
        for text in ["count: '3'", "count: 3\nflag: yes", "count: 3\nflag: 1", "count: 3\nshare: true"] {
            assert_eq!(check(text, Leniency::Strict).1.len(), 1, "{text}");
        }
    }
}
