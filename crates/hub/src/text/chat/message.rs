//! Messages of a conversation, and JSON with ordered keys, which templates write
//! into the text.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Number;

use super::python;

/// A JSON value with ordered keys.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderedJson {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<OrderedJson>),
    /// Unique keys and their values.
    Map(Vec<(String, OrderedJson)>),
}

/// A message: role, content, and other fields such as `tool_calls`.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    fields: Vec<(String, OrderedJson)>,
}

/// JSON that is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a message: a JSON object with a string `role`")]
pub struct InvalidMessage;

impl Message {
    /// A message with a role and content.
    pub fn new(role: &str, content: impl Into<OrderedJson>) -> Self {
        let role = ("role".to_owned(), OrderedJson::from(role));
        Self { fields: vec![role, ("content".to_owned(), content.into())] }
    }

    /// Sets a field.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<OrderedJson>) -> Self {
        put(&mut self.fields, key.to_owned(), value.into());
        self
    }

    /// The role, such as `user`.
    pub fn role(&self) -> &str {
        match self.get("role") {
            Some(OrderedJson::Text(role)) => role,
            _ => "",
        }
    }

    /// The value of a field.
    pub fn get(&self, key: &str) -> Option<&OrderedJson> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The value for templates. Reasoning has several names; like transformers,
    /// it is available under each that templates read.
    pub(super) fn to_value(&self) -> Value {
        let names = ["reasoning_content", "thinking", "reasoning"];
        let reasoning =
            names.iter().find_map(|name| self.get(name).filter(|value| **value != OrderedJson::Null));
        let Some(reasoning) = reasoning else { return map_value(&self.fields) };
        let mut fields = self.fields.clone();
        if self.get("thinking").is_none() {
            fields.insert(0, ("thinking".to_owned(), reasoning.clone()));
        }
        put(&mut fields, "reasoning_content".to_owned(), reasoning.clone());
        map_value(&fields)
    }
}

impl TryFrom<OrderedJson> for Message {
    type Error = InvalidMessage;

    fn try_from(data: OrderedJson) -> Result<Self, InvalidMessage> {
        match data {
            OrderedJson::Map(fields) => {
                let message = Self { fields };
                matches!(message.get("role"), Some(OrderedJson::Text(_)))
                    .then_some(message)
                    .ok_or(InvalidMessage)
            }
            _ => Err(InvalidMessage),
        }
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(OrderedJson::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn put(fields: &mut Vec<(String, OrderedJson)>, key: String, value: OrderedJson) {
    match fields.iter_mut().find(|(name, _)| *name == key) {
        Some((_, old)) => *old = value,
        None => fields.push((key, value)),
    }
}

impl OrderedJson {
    /// The value for templates.
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

fn map_value(fields: &[(String, OrderedJson)]) -> Value {
    // Of equal keys the first counts.
    let mut positions = HashMap::with_capacity(fields.len());
    for (position, (key, _)) in fields.iter().enumerate() {
        positions.entry(key.clone()).or_insert(position);
    }
    let pairs = fields.iter().map(|(key, data)| (Value::from(key.as_str()), data.to_value())).collect();
    Value::from_object(OrderedMap { pairs, positions })
}

/// A map with ordered keys for templates.
#[derive(Debug)]
struct OrderedMap {
    pairs: Vec<(Value, Value)>,
    positions: HashMap<String, usize>,
}

impl Object for OrderedMap {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let position = *self.positions.get(key.as_str()?)?;
        self.pairs.get(position).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.pairs.iter().map(|(name, _)| name.clone()).collect())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = python::text(&Value::from_dyn_object(self.clone())).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

impl From<&str> for OrderedJson {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for OrderedJson {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for OrderedJson {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

/// Keys have the order of `serde_json`, not of the text; parse the text as
/// [`OrderedJson`] to keep it.
impl From<serde_json::Value> for OrderedJson {
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

impl<'de> Deserialize<'de> for OrderedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DataVisitor)
    }
}

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = OrderedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Null)
    }

    fn visit_none<E>(self) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<OrderedJson, D::Error> {
        OrderedJson::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<OrderedJson, E> {
        Ok(Number::from_f64(number).map_or(OrderedJson::Null, OrderedJson::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<OrderedJson, E> {
        Ok(OrderedJson::from(text))
    }

    fn visit_string<E>(self, text: String) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<OrderedJson, A::Error> {
        let mut list = Vec::new();
        while let Some(data) = access.next_element()? {
            list.push(data);
        }
        Ok(OrderedJson::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<OrderedJson, A::Error> {
        // As in Python, a repeated key has its last value at its first position.
        let mut positions = HashMap::new();
        let mut fields: Vec<(String, OrderedJson)> = Vec::new();
        while let Some((key, data)) = access.next_entry::<String, OrderedJson>()? {
            let position = *positions.entry(key.clone()).or_insert(fields.len());
            match fields.get_mut(position) {
                Some((_, old)) => *old = data,
                None => fields.push((key, data)),
            }
        }
        Ok(OrderedJson::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_in_order() {
        let data: OrderedJson = serde_json::from_str(r#"{"z": 1, "a": [2.5, null], "z": "last"}"#).unwrap();
        let OrderedJson::Map(fields) = &data else { panic!("{data:?}") };
        assert_eq!(fields.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["z", "a"]);
        assert_eq!(data.to_value().to_string(), "{'z': 'last', 'a': [2.5, None]}");
    }

    #[test]
    fn a_message_has_a_role() {
        let message: Message = serde_json::from_str(r#"{"content": null, "role": "user"}"#).unwrap();
        assert_eq!((message.role(), message.get("content")), ("user", Some(&OrderedJson::Null)));
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
