//! What conversations are made of: JSON that keeps the order of its keys, as
//! templates write it into the text.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Number;

use super::python;

/// A JSON value whose keys stay in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Data>),
    /// Keys and values, each key once.
    Map(Vec<(String, Data)>),
}

/// One message of a conversation: who says it, what is said, and whatever else
/// templates know, such as `tool_calls`.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    fields: Vec<(String, Data)>,
}

/// Something that is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message is a JSON object with a text `role`")]
pub struct NotAMessage;

impl Message {
    /// A message with content.
    pub fn new(role: &str, content: impl Into<Data>) -> Self {
        let role = ("role".to_owned(), Data::from(role));
        Self { fields: vec![role, ("content".to_owned(), content.into())] }
    }

    /// The same, with another field or another value for one.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Data>) -> Self {
        put(&mut self.fields, key.to_owned(), value.into());
        self
    }

    /// Who says it.
    pub fn role(&self) -> &str {
        match self.get("role") {
            Some(Data::Text(role)) => role,
            _ => "",
        }
    }

    /// A field.
    pub fn get(&self, key: &str) -> Option<&Data> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// For templates. Reasoning has several names; like transformers, we give
    /// it under those that templates read.
    pub(super) fn to_value(&self) -> Value {
        let names = ["reasoning_content", "thinking", "reasoning"];
        let reasoning = names.iter().find_map(|name| self.get(name).filter(|value| **value != Data::Null));
        let Some(reasoning) = reasoning else { return map_value(&self.fields) };
        let mut fields = self.fields.clone();
        if self.get("thinking").is_none() {
            fields.insert(0, ("thinking".to_owned(), reasoning.clone()));
        }
        put(&mut fields, "reasoning_content".to_owned(), reasoning.clone());
        map_value(&fields)
    }
}

impl TryFrom<Data> for Message {
    type Error = NotAMessage;

    fn try_from(data: Data) -> Result<Self, NotAMessage> {
        match data {
            Data::Map(fields) => {
                let message = Self { fields };
                matches!(message.get("role"), Some(Data::Text(_))).then_some(message).ok_or(NotAMessage)
            }
            _ => Err(NotAMessage),
        }
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Data::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn put(fields: &mut Vec<(String, Data)>, key: String, value: Data) {
    match fields.iter_mut().find(|(name, _)| *name == key) {
        Some((_, old)) => *old = value,
        None => fields.push((key, value)),
    }
}

impl Data {
    /// For templates.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::from(()),
            Self::Bool(flag) => Value::from(*flag),
            Self::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Value::from(number),
                (None, Some(number)) => Value::from(number),
                (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
            },
            Self::Text(text) => Value::from(text.as_str()),
            Self::List(list) => list.iter().map(Self::to_value).collect(),
            Self::Map(fields) => map_value(fields),
        }
    }
}

fn map_value(fields: &[(String, Data)]) -> Value {
    let pairs = fields.iter().map(|(key, data)| (Value::from(key.as_str()), data.to_value()));
    Value::from_object(Ordered(pairs.collect()))
}

/// A map for templates, in order.
#[derive(Debug)]
struct Ordered(Vec<(Value, Value)>);

impl Object for Ordered {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(name, _)| name.clone()).collect())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = python::text(&Value::from_dyn_object(self.clone())).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

impl From<&str> for Data {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Data {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Data {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

/// Keys come in the order that `serde_json` gives them, which is not that of
/// the text; parse the text as [`Data`] to keep it.
impl From<serde_json::Value> for Data {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(flag) => Self::Bool(flag),
            serde_json::Value::Number(number) => Self::Number(number),
            serde_json::Value::String(text) => Self::Text(text),
            serde_json::Value::Array(list) => Self::List(list.into_iter().map(Self::from).collect()),
            serde_json::Value::Object(map) => {
                Self::Map(map.into_iter().map(|(key, value)| (key, Self::from(value))).collect())
            }
        }
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DataVisitor)
    }
}

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Data, E> {
        Ok(Data::Null)
    }

    fn visit_none<E>(self) -> Result<Data, E> {
        Ok(Data::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Data, D::Error> {
        Data::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Data, E> {
        Ok(Data::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Data, E> {
        Ok(Data::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Data, E> {
        Ok(Data::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Data, E> {
        Ok(Number::from_f64(number).map_or(Data::Null, Data::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Data, E> {
        Ok(Data::from(text))
    }

    fn visit_string<E>(self, text: String) -> Result<Data, E> {
        Ok(Data::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Data, A::Error> {
        let mut list = Vec::new();
        while let Some(data) = access.next_element()? {
            list.push(data);
        }
        Ok(Data::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Data, A::Error> {
        // As in Python, a key that comes again has the last value, in the
        // first place.
        let mut places = std::collections::HashMap::new();
        let mut fields: Vec<(String, Data)> = Vec::new();
        while let Some((key, data)) = access.next_entry::<String, Data>()? {
            let place = *places.entry(key.clone()).or_insert(fields.len());
            match fields.get_mut(place) {
                Some((_, old)) => *old = data,
                None => fields.push((key, data)),
            }
        }
        Ok(Data::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_in_order() {
        let data: Data = serde_json::from_str(r#"{"z": 1, "a": [2.5, null], "z": "last"}"#).unwrap();
        let Data::Map(fields) = &data else { panic!("{data:?}") };
        assert_eq!(fields.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["z", "a"]);
        assert_eq!(data.to_value().to_string(), "{'z': 'last', 'a': [2.5, None]}");
    }

    #[test]
    fn a_message_has_a_role() {
        let message: Message = serde_json::from_str(r#"{"content": null, "role": "user"}"#).unwrap();
        assert_eq!((message.role(), message.get("content")), ("user", Some(&Data::Null)));
        for bad in ["{}", "[]", r#"{"role": 1}"#] {
            assert!(serde_json::from_str::<Message>(bad).is_err());
        }
    }

    #[test]
    fn reasoning_has_several_names() {
        let value = Message::new("assistant", "4").with("reasoning", "2 + 2").to_value();
        assert_eq!(value.get_attr("reasoning_content").unwrap().as_str(), Some("2 + 2"));
        assert_eq!(value.get_attr("thinking").unwrap().as_str(), Some("2 + 2"));
    }
}
