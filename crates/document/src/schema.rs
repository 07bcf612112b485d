//! The keys of a document with their types, defaults and descriptions.
//!
//! A [`Section`] is a JSON schema, as `schemars` writes it for our config
//! types, in a form that validation, overrides and reference pages can walk.

use serde_json::{Map, Value};

/// A map with a fixed set of keys.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Section {
    pub keys: Vec<Key>,
}

/// A key of a section.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Key {
    pub name: String,
    pub kind: Kind,
    pub nullable: Nullable,
    /// A key without a default is required.
    pub default: Option<Value>,
    pub description: String,
}

/// Whether a key accepts `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Nullable {
    Yes,
    No,
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Kind {
    /// A map with a fixed set of keys.
    Section(Section),
    /// A map with arbitrary keys.
    Map(Box<Kind>),
    /// A list, possibly of fixed length.
    List(Box<Kind>, Option<usize>),
    /// One of several names.
    Choice(Vec<Choice>),
    /// A string, or a list with items of this type.
    StringOrList(Box<Kind>),
    /// True, false, or one of several names.
    BoolOrChoice(Vec<Choice>),
    String,
    Bool,
    /// An integer within inclusive bounds.
    Integer {
        min: i128,
        max: i128,
    },
    Number,
    Any,
}

/// One of the values of a [`Kind::Choice`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Choice {
    pub name: String,
    pub description: String,
}

impl Section {
    /// Converts the JSON schema of a type.
    pub fn from_json_schema(schema: &Value) -> Result<Self, UnsupportedSchema> {
        match Reader::new(schema).kind(schema)? {
            (Kind::Section(section), _) => Ok(section),
            (other, _) => {
                Err(UnsupportedSchema(format!("{}, not a map with a fixed set of keys", other.expected())))
            }
        }
    }

    /// Finds a key by name.
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Finds a key by its full name, as in `train.optimizer.lr`, to change what it
    /// accepts: the names of a registry, or the keys that one of them adds.
    pub fn key_mut(&mut self, path: &str) -> Option<&mut Key> {
        let (first, rest) = match path.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (path, None),
        };
        let key = self.keys.iter_mut().find(|key| key.name == first)?;
        match rest {
            None => Some(key),
            Some(rest) => match &mut key.kind {
                Kind::Section(section) => section.key_mut(rest),
                _ => None,
            },
        }
    }

    /// The full keys of this section and of all sections in it.
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
    /// Describes a matching value: "a list of strings".
    pub fn expected(&self) -> String {
        match self {
            Self::Section(_) | Self::Map(_) => "a map".to_owned(),
            Self::List(items, _) => format!("a list of {}", items.plural()),
            Self::Choice(choices) => {
                let names: Vec<String> = choices.iter().map(|choice| format!("`{}`", choice.name)).collect();
                format!("one of {}", names.join(", "))
            }
            Self::StringOrList(items) => format!("a string or a list of {}", items.plural()),
            Self::BoolOrChoice(choices) => {
                let names: Vec<String> = choices.iter().map(|choice| format!("`{}`", choice.name)).collect();
                format!("true, false or {}", names.join(", "))
            }
            Self::String => "a string".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Integer { .. } => "an integer".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Any => "a value".to_owned(),
        }
    }

    fn plural(&self) -> String {
        match self {
            Self::Section(_) | Self::Map(_) => "maps".to_owned(),
            Self::List(items, _) => format!("lists of {}", items.plural()),
            Self::Choice(_) | Self::BoolOrChoice(_) => "names".to_owned(),
            Self::StringOrList(items) => format!("strings or lists of {}", items.plural()),
            Self::String => "strings".to_owned(),
            Self::Bool => "booleans".to_owned(),
            Self::Integer { .. } => "integers".to_owned(),
            Self::Number => "numbers".to_owned(),
            Self::Any => "values".to_owned(),
        }
    }
}

/// Schema keywords that do not restrict values.
const ANNOTATIONS: [&str; 5] = ["$schema", "title", "description", "default", "$defs"];

/// A part of a JSON schema that a [`Section`] cannot represent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedSchema(pub String);

struct Reader<'a> {
    definitions: Option<&'a Map<String, Value>>,
}

impl<'a> Reader<'a> {
    fn new(schema: &'a Value) -> Self {
        Self { definitions: schema.get("$defs").and_then(Value::as_object) }
    }

    fn kind(&self, schema: &Value) -> Result<(Kind, Nullable), UnsupportedSchema> {
        let unsupported = || UnsupportedSchema(schema.to_string());
        let map = match schema {
            Value::Bool(true) => return Ok((Kind::Any, Nullable::Yes)),
            Value::Object(map) => map,
            _ => return Err(unsupported()),
        };
        let only = |known: &[&str]| {
            let fits = |key: &String| ANNOTATIONS.contains(&key.as_str()) || known.contains(&key.as_str());
            if map.keys().all(fits) { Ok(()) } else { Err(unsupported()) }
        };
        if let Some(name) = map.get("$ref") {
            only(&["$ref"])?;
            let name =
                name.as_str().and_then(|name| name.strip_prefix("#/$defs/")).ok_or_else(unsupported)?;
            return self.kind(self.definitions.and_then(|all| all.get(name)).ok_or_else(unsupported)?);
        }
        if let Some(either) = map.get("anyOf").and_then(Value::as_array) {
            only(&["anyOf"])?;
            return match either.as_slice() {
                [one, null] if null.get("type") == Some(&Value::from("null")) => {
                    Ok((self.kind(one)?.0, Nullable::Yes))
                }
                [one, other] => match (self.kind(one)?, self.kind(other)?) {
                    ((Kind::String, Nullable::No), (Kind::List(items, None), Nullable::No)) => {
                        Ok((Kind::StringOrList(items), Nullable::No))
                    }
                    ((Kind::Bool, Nullable::No), (Kind::Choice(choices), Nullable::No)) => {
                        Ok((Kind::BoolOrChoice(choices), Nullable::No))
                    }
                    _ => Err(unsupported()),
                },
                _ => Err(unsupported()),
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
                _ => return Err(unsupported()),
            },
            None if map.keys().all(|key| ANNOTATIONS.contains(&key.as_str())) => {
                return Ok((Kind::Any, Nullable::Yes));
            }
            _ => return Err(unsupported()),
        };
        let kind = match name {
            "string" => only(&["type"]).map(|()| Kind::String)?,
            "boolean" => only(&["type"]).map(|()| Kind::Bool)?,
            "number" => only(&["type", "format"]).map(|()| Kind::Number)?,
            "integer" => {
                only(&["type", "format", "minimum", "maximum"])?;
                let (min, max) = match map.get("format").and_then(Value::as_str) {
                    Some("uint" | "uint64") => (0, i128::from(u64::MAX)),
                    Some("uint32") => (0, i128::from(u32::MAX)),
                    Some("uint16") => (0, i128::from(u16::MAX)),
                    Some("uint8") => (0, i128::from(u8::MAX)),
                    Some("int64") => (i128::from(i64::MIN), i128::from(i64::MAX)),
                    Some("int32") => (i128::from(i32::MIN), i128::from(i32::MAX)),
                    _ => return Err(unsupported()),
                };
                let bound = |key: &str| {
                    map.get(key)
                        .map(|bound| bound.as_i64().map(i128::from).ok_or_else(unsupported))
                        .transpose()
                };
                Kind::Integer {
                    min: bound("minimum")?.map_or(min, |bound| bound.max(min)),
                    max: bound("maximum")?.map_or(max, |bound| bound.min(max)),
                }
            }
            "array" => {
                only(&["type", "items", "prefixItems", "minItems", "maxItems"])?;
                let items = match (map.get("items"), map.get("prefixItems").and_then(Value::as_array)) {
                    (Some(items), None) => self.kind(items)?.0,
                    // A tuple whose values have the same type.
                    (None | Some(Value::Bool(false)), Some(items)) => {
                        let kinds: Vec<Kind> = items
                            .iter()
                            .map(|item| Ok(self.kind(item)?.0))
                            .collect::<Result<_, UnsupportedSchema>>()?;
                        match kinds.split_first() {
                            Some((first, rest)) if rest.iter().all(|kind| kind == first) => first.clone(),
                            _ => return Err(unsupported()),
                        }
                    }
                    _ => return Err(unsupported()),
                };
                let bound =
                    |key: &str| map.get(key).map(|bound| bound.as_u64().ok_or_else(unsupported)).transpose();
                let length = match (bound("minItems")?, bound("maxItems")?) {
                    (None, None) => None,
                    (min, max) if min == max => min.and_then(|length| usize::try_from(length).ok()),
                    _ => return Err(unsupported()),
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
                    _ => return Err(unsupported()),
                }
            }
            _ => return Err(unsupported()),
        };
        Ok((kind, nullable))
    }

    fn section(
        &self,
        keys: &Map<String, Value>,
        map: &Map<String, Value>,
    ) -> Result<Section, UnsupportedSchema> {
        let required = map.get("required").and_then(Value::as_array);
        let is_required = |name: &String| required.is_some_and(|all| all.iter().any(|key| key == name));
        let key = |(name, schema): (&String, &Value)| {
            let (kind, nullable) = self.kind(schema)?;
            let default = if is_required(name) { None } else { Some(schema.get("default").cloned()) };
            // An optional key needs a default that the reference page can show.
            let default = match default {
                Some(None) if nullable == Nullable::Yes => Some(Value::Null),
                Some(None) => return Err(UnsupportedSchema(format!("`{name}` has no default"))),
                Some(default) => default,
                None => None,
            };
            Ok(Key { name: name.clone(), kind, nullable, default, description: description(schema) })
        };
        Ok(Section { keys: keys.iter().map(key).collect::<Result<_, UnsupportedSchema>>()? })
    }

    fn choices(&self, schema: &Value) -> Result<Vec<Choice>, UnsupportedSchema> {
        let unsupported = || UnsupportedSchema(schema.to_string());
        let words: Vec<&Value> = match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
            (Some(word), None) => vec![word],
            (None, Some(words)) => words.iter().collect(),
            _ => return Err(unsupported()),
        };
        let choice = |word: &&Value| {
            let name = word.as_str().ok_or_else(unsupported)?.to_owned();
            Ok(Choice { name, description: description(schema) })
        };
        words.iter().map(choice).collect()
    }
}

fn description(schema: &Value) -> String {
    schema.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_string_or_a_list_is_one_kind() {
        let list = json!({"type": "array", "items": {"type": "string"}});
        let either = json!({"anyOf": [{"type": "string"}, list]});
        let (kind, nullable) = Reader::new(&json!({})).kind(&either).unwrap();
        assert_eq!((&kind, nullable), (&Kind::StringOrList(Box::new(Kind::String)), Nullable::No));
        assert_eq!(kind.expected(), "a string or a list of strings");
    }

    #[test]
    fn unsupported_schemas_are_rejected() {
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
