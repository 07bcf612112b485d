//! Which keys there are, what they hold, and what they mean: the JSON schema of
//! the types, in the form that checks, overrides and the reference page need.

use serde_json::{Map, Value};

/// A map with keys that are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// The keys.
    pub keys: Vec<Key>,
}

/// A key of a section.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
    /// Whether `null` is a value.
    pub nullable: Nullable,
    /// What holds if the key is not there; without it, the key must be there.
    pub default: Option<Value>,
    /// What it says.
    pub meaning: String,
}

/// Whether `null` is a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nullable {
    /// It is.
    Yes,
    /// It is not.
    No,
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A map with known keys.
    Section(Section),
    /// A map with any keys.
    Map(Box<Kind>),
    /// A list, of this length if one is given.
    List(Box<Kind>, Option<usize>),
    /// A word.
    Choice(Vec<Choice>),
    /// A text.
    Text,
    /// True or false.
    Bool,
    /// A number without a fraction.
    Whole {
        /// The least.
        least: i128,
        /// The most.
        most: i128,
    },
    /// A number.
    Number,
    /// Any value.
    Anything,
}

/// A word that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The word.
    pub name: String,
    /// What it says.
    pub meaning: String,
}

impl Section {
    /// The outline of a type, from its JSON schema.
    pub fn of(schema: &Value) -> Result<Self, NoOutline> {
        match Reader::new(schema).kind(schema)? {
            (Kind::Section(section), _) => Ok(section),
            (other, _) => Err(NoOutline(format!("{}, not a map with known keys", other.expected()))),
        }
    }

    /// A key by its name.
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Every key below, with those around it.
    pub fn paths(&self) -> Vec<String> {
        let mut all = Vec::new();
        for key in &self.keys {
            all.push(key.name.clone());
            if let Kind::Section(section) = &key.kind {
                all.extend(section.paths().into_iter().map(|path| format!("{}.{path}", key.name)));
            }
        }
        all
    }
}

impl Kind {
    /// What fits, in words.
    pub fn expected(&self) -> String {
        match self {
            Self::Section(_) | Self::Map(_) => "a map".to_owned(),
            Self::List(items, _) => format!("a list of {}", items.several()),
            Self::Choice(choices) => {
                let names: Vec<String> = choices.iter().map(|choice| format!("`{}`", choice.name)).collect();
                format!("one of {}", names.join(", "))
            }
            Self::Text => "a text".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Whole { .. } => "a whole number".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Anything => "a value".to_owned(),
        }
    }

    /// Several of what fits.
    fn several(&self) -> String {
        match self {
            Self::Section(_) | Self::Map(_) => "maps".to_owned(),
            Self::List(items, _) => format!("lists of {}", items.several()),
            Self::Choice(_) => "words".to_owned(),
            Self::Text => "texts".to_owned(),
            Self::Bool => "true and false".to_owned(),
            Self::Whole { .. } => "whole numbers".to_owned(),
            Self::Number => "numbers".to_owned(),
            Self::Anything => "values".to_owned(),
        }
    }
}

/// Keywords of a schema that say nothing about what fits.
const ABOUT: [&str; 5] = ["$schema", "title", "description", "default", "$defs"];

/// A part of a schema that an outline has no form for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoOutline(pub String);

struct Reader<'a> {
    definitions: Option<&'a Map<String, Value>>,
}

impl<'a> Reader<'a> {
    fn new(schema: &'a Value) -> Self {
        Self { definitions: schema.get("$defs").and_then(Value::as_object) }
    }

    fn kind(&self, schema: &Value) -> Result<(Kind, Nullable), NoOutline> {
        let none = || NoOutline(schema.to_string());
        let map = match schema {
            Value::Bool(true) => return Ok((Kind::Anything, Nullable::Yes)),
            Value::Object(map) => map,
            _ => return Err(none()),
        };
        let only = |known: &[&str]| {
            let fits = |key: &String| ABOUT.contains(&key.as_str()) || known.contains(&key.as_str());
            if map.keys().all(fits) { Ok(()) } else { Err(none()) }
        };
        if let Some(name) = map.get("$ref") {
            only(&["$ref"])?;
            let name = name.as_str().and_then(|name| name.strip_prefix("#/$defs/")).ok_or_else(none)?;
            return self.kind(self.definitions.and_then(|all| all.get(name)).ok_or_else(none)?);
        }
        if let Some(either) = map.get("anyOf").and_then(Value::as_array) {
            only(&["anyOf"])?;
            return match either.as_slice() {
                [one, null] if null.get("type") == Some(&Value::from("null")) => {
                    Ok((self.kind(one)?.0, Nullable::Yes))
                }
                _ => Err(none()),
            };
        }
        if let Some(choices) = map.get("oneOf").and_then(Value::as_array) {
            only(&["oneOf"])?;
            let mut all = Vec::new();
            for choice in choices {
                all.extend(self.choices(choice)?);
            }
            return Ok((Kind::Choice(all), Nullable::No));
        }
        if map.contains_key("enum") || map.contains_key("const") {
            return Ok((Kind::Choice(self.choices(schema)?), Nullable::No));
        }
        let (name, nullable) = match map.get("type") {
            Some(Value::String(name)) => (name.as_str(), Nullable::No),
            Some(Value::Array(names)) => match names.as_slice() {
                [Value::String(name), null] if null == "null" => (name.as_str(), Nullable::Yes),
                _ => return Err(none()),
            },
            None if map.keys().all(|key| ABOUT.contains(&key.as_str())) => {
                return Ok((Kind::Anything, Nullable::Yes));
            }
            _ => return Err(none()),
        };
        let kind = match name {
            "string" => only(&["type"]).map(|()| Kind::Text)?,
            "boolean" => only(&["type"]).map(|()| Kind::Bool)?,
            "number" => only(&["type", "format"]).map(|()| Kind::Number)?,
            "integer" => {
                only(&["type", "format", "minimum", "maximum"])?;
                let (least, most) = match map.get("format").and_then(Value::as_str) {
                    Some("uint" | "uint64") => (0, i128::from(u64::MAX)),
                    Some("uint32") => (0, i128::from(u32::MAX)),
                    Some("uint16") => (0, i128::from(u16::MAX)),
                    Some("uint8") => (0, i128::from(u8::MAX)),
                    Some("int64") => (i128::from(i64::MIN), i128::from(i64::MAX)),
                    Some("int32") => (i128::from(i32::MIN), i128::from(i32::MAX)),
                    _ => return Err(none()),
                };
                let bound = |key: &str| {
                    map.get(key).map(|bound| bound.as_i64().map(i128::from).ok_or_else(none)).transpose()
                };
                Kind::Whole {
                    least: bound("minimum")?.map_or(least, |bound| bound.max(least)),
                    most: bound("maximum")?.map_or(most, |bound| bound.min(most)),
                }
            }
            "array" => {
                only(&["type", "items", "prefixItems", "minItems", "maxItems"])?;
                let items = match (map.get("items"), map.get("prefixItems").and_then(Value::as_array)) {
                    (Some(items), None) => self.kind(items)?.0,
                    // A tuple, of values of one kind.
                    (None | Some(Value::Bool(false)), Some(items)) => {
                        let kinds: Vec<Kind> = items
                            .iter()
                            .map(|item| Ok(self.kind(item)?.0))
                            .collect::<Result<_, NoOutline>>()?;
                        match kinds.split_first() {
                            Some((first, rest)) if rest.iter().all(|kind| kind == first) => first.clone(),
                            _ => return Err(none()),
                        }
                    }
                    _ => return Err(none()),
                };
                let bound = |key: &str| map.get(key).map(|bound| bound.as_u64().ok_or_else(none)).transpose();
                let length = match (bound("minItems")?, bound("maxItems")?) {
                    (None, None) => None,
                    (least, most) if least == most => least.and_then(|length| usize::try_from(length).ok()),
                    _ => return Err(none()),
                };
                Kind::List(Box::new(items), length)
            }
            "object" => {
                only(&["type", "properties", "required", "additionalProperties"])?;
                match (map.get("properties"), map.get("additionalProperties")) {
                    (Some(Value::Object(keys)), Some(Value::Bool(false))) => {
                        Kind::Section(self.section(keys, map)?)
                    }
                    (None, Some(values)) if values != &Value::Bool(false) => {
                        Kind::Map(Box::new(self.kind(values)?.0))
                    }
                    _ => return Err(none()),
                }
            }
            _ => return Err(none()),
        };
        Ok((kind, nullable))
    }

    fn section(&self, keys: &Map<String, Value>, map: &Map<String, Value>) -> Result<Section, NoOutline> {
        let required = map.get("required").and_then(Value::as_array);
        let must = |name: &String| required.is_some_and(|all| all.iter().any(|key| key == name));
        let key = |(name, schema): (&String, &Value)| {
            let (kind, nullable) = self.kind(schema)?;
            let default = if must(name) { None } else { Some(schema.get("default").cloned()) };
            // A key that may be left out says what holds then.
            let default = match default {
                Some(None) if nullable == Nullable::Yes => Some(Value::Null),
                Some(None) => return Err(NoOutline(format!("`{name}` has no default"))),
                Some(default) => default,
                None => None,
            };
            Ok(Key { name: name.clone(), kind, nullable, default, meaning: meaning(schema) })
        };
        Ok(Section { keys: keys.iter().map(key).collect::<Result<_, NoOutline>>()? })
    }

    fn choices(&self, schema: &Value) -> Result<Vec<Choice>, NoOutline> {
        let none = || NoOutline(schema.to_string());
        let words: Vec<&Value> = match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
            (Some(word), None) => vec![word],
            (None, Some(words)) => words.iter().collect(),
            _ => return Err(none()),
        };
        let choice = |word: &&Value| {
            let name = word.as_str().ok_or_else(none)?.to_owned();
            Ok(Choice { name, meaning: meaning(schema) })
        };
        words.iter().map(choice).collect()
    }
}

fn meaning(schema: &Value) -> String {
    schema.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_no_form_is_refused() {
        for schema in [
            json!(false),
            json!({"$ref": "#/elsewhere"}),
            json!({"$ref": "#/$defs/Missing"}),
            json!({"type": "integer", "format": "int7"}),
            json!({"type": "integer", "format": "uint", "multipleOf": 2}),
            json!({"type": ["integer", "string"]}),
            json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
            json!({"oneOf": [{"type": "object"}]}),
            json!({"enum": [1, 2]}),
            json!({"type": "string", "pattern": "x"}),
            json!({"type": "array"}),
            json!({"type": "array", "items": true, "minItems": 1}),
            json!({"type": "object", "properties": {}}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false}),
            json!({"type": "null"}),
            json!({"not": true}),
        ] {
            assert!(Reader::new(&json!({})).kind(&schema).is_err(), "{schema}");
        }
    }
}
