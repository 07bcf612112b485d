//! Conversion of plain values to JSON.
//!
//! Sets and tuples become lists, bytes become lists of numbers, keys become
//! text, and numbers that JSON cannot represent become text.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use serde_json::Value as Json;

use super::{Budget, Global, MAX_DEPTH, Node, Object, Pickle, PickleError, Value};

impl<'a> Pickle<'a> {
    /// A value as JSON; `name` is for errors.
    pub(crate) fn json(
        &self,
        name: &str,
        value: Value<'a>,
        budget: &mut Budget,
    ) -> Result<Json, PickleError> {
        let text = self.json_text(name, value, budget)?;
        let unexpected = |_| PickleError::Unexpected { name: name.to_owned(), expected: "a plain value" };
        serde_json::from_str(&text).map_err(unexpected)
    }

    /// A value as the text of JSON, which takes less memory than a tree.
    pub(crate) fn json_text(
        &self,
        name: &str,
        value: Value<'a>,
        budget: &mut Budget,
    ) -> Result<String, PickleError> {
        let mut converter = JsonConverter { pickle: self, name, budget, text: String::new() };
        converter.value(value, 0)?;
        converter.text.shrink_to_fit();
        Ok(converter.text)
    }
}

struct JsonConverter<'w, 'a> {
    pickle: &'w Pickle<'a>,
    name: &'w str,
    budget: &'w mut Budget,
    text: String,
}

impl<'a> JsonConverter<'_, 'a> {
    fn unexpected(&self, expected: &'static str) -> PickleError {
        PickleError::Unexpected { name: self.name.to_owned(), expected }
    }

    fn write(&mut self, part: impl Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{part}");
    }

    fn quoted(&mut self, text: &str) -> Result<(), PickleError> {
        self.budget.spend(quoted_length(text))?;
        self.write(Json::from(text));
        Ok(())
    }

    fn value(&mut self, value: Value<'a>, depth: usize) -> Result<(), PickleError> {
        self.budget.spend(0)?;
        if depth > MAX_DEPTH {
            return Err(PickleError::Deep { limit: MAX_DEPTH });
        }
        match value {
            Value::None => self.write("null"),
            Value::Bool(truth) => self.write(truth),
            Value::Int(number) => self.write(number),
            Value::Long(bytes) => return self.long(bytes),
            Value::Float(number) => match serde_json::Number::from_f64(number) {
                Some(number) => self.write(number),
                None => return self.quoted(&number.to_string()),
            },
            Value::Text(text) => return self.quoted(text),
            Value::Bytes(bytes) => return self.numbers(bytes.iter().map(|&byte| Some(byte)), bytes.len()),
            Value::Global(Global::DType(name)) => return self.quoted(&format!("torch.{name}")),
            Value::Global(_) => return Err(self.unexpected("a plain value, not a class")),
            Value::Node(_) => return self.node(value, depth),
        }
        Ok(())
    }

    fn node(&mut self, value: Value<'a>, depth: usize) -> Result<(), PickleError> {
        let pickle = self.pickle;
        match pickle.node(value) {
            Some(Node::List(items) | Node::Tuple(items) | Node::Set(items)) => {
                self.text.push('[');
                for (number, &item) in items.iter().enumerate() {
                    self.separate(number);
                    self.value(item, depth + 1)?;
                }
                self.text.push(']');
                Ok(())
            }
            Some(Node::Dict(pairs)) => {
                // Of equal keys, the last one counts.
                let mut sorted = BTreeMap::new();
                for &(key, value) in pairs {
                    sorted.insert(self.key(key)?, value);
                }
                self.text.push('{');
                for (number, (key, value)) in sorted.into_iter().enumerate() {
                    self.separate(number);
                    self.write(Json::from(key));
                    self.text.push(':');
                    self.value(value, depth + 1)?;
                }
                self.text.push('}');
                Ok(())
            }
            Some(Node::Object(object)) => self.object(object, depth),
            Some(Node::Persistent(_)) | None => Err(self.unexpected("a plain value, not a storage")),
        }
    }

    fn separate(&mut self, number: usize) {
        if number > 0 {
            self.text.push(',');
        }
    }

    fn key(&mut self, key: Value<'a>) -> Result<String, PickleError> {
        // While a dict is sorted, a key takes about this much besides its text.
        const KEY: usize = 64;
        match key {
            Value::Text(text) => {
                self.budget.spend(text.len() + quoted_length(text) + KEY)?;
                Ok(text.to_owned())
            }
            Value::Int(number) => {
                self.budget.spend(KEY)?;
                Ok(number.to_string())
            }
            _ => Err(self.unexpected("a dict whose keys are texts or numbers")),
        }
    }

    /// The few calls with plain results.
    fn object(&mut self, object: &Object<'a>, depth: usize) -> Result<(), PickleError> {
        let arguments = self.pickle.items(object.arguments).unwrap_or_default();
        match (object.class, arguments) {
            (Global::Set | Global::Bytearray, []) => {
                self.write("[]");
                Ok(())
            }
            (Global::Set | Global::Bytearray, &[items]) => self.value(items, depth + 1),
            // Bytes that were written as the characters of the same numbers.
            (Global::Encode, &[Value::Text(text), Value::Text("latin1")]) => {
                let bytes = text.chars().map(|character| u8::try_from(u32::from(character)).ok());
                self.numbers(bytes, text.len())
            }
            (Global::Device, &[Value::Text(kind)]) => self.quoted(kind),
            (Global::Device, &[Value::Text(kind), Value::Int(number)]) => {
                self.quoted(&format!("{kind}:{number}"))
            }
            (Global::Path, parts) => {
                let parts: Option<Vec<&str>> = parts.iter().map(Value::text).collect();
                let parts = parts.ok_or_else(|| self.unexpected("a path"))?;
                // Parts may be shared: pay before they are joined.
                self.budget.spend(parts.iter().map(|part| part.len() + 1).sum())?;
                self.quoted(&parts.join("/"))
            }
            _ => Err(self.unexpected("a plain value, not an object")),
        }
    }

    /// A list of bytes, `None` for characters that are none.
    fn numbers(&mut self, bytes: impl Iterator<Item = Option<u8>>, length: usize) -> Result<(), PickleError> {
        self.budget.spend(length.saturating_mul(4))?;
        self.text.push('[');
        for (number, byte) in bytes.enumerate() {
            self.separate(number);
            self.write(byte.ok_or_else(|| self.unexpected("bytes"))?);
        }
        self.text.push(']');
        Ok(())
    }

    fn long(&mut self, bytes: &[u8]) -> Result<(), PickleError> {
        // Seeds are often unsigned and need a ninth byte for the sign.
        if let (Some((&0, low)), 9) = (bytes.split_last(), bytes.len())
            && let Ok(low) = low.try_into()
        {
            self.write(u64::from_le_bytes(low));
            return Ok(());
        }
        self.budget.spend(bytes.len().saturating_mul(2))?;
        self.text.push_str("\"0x");
        for byte in bytes.iter().rev() {
            self.write(format_args!("{byte:02x}"));
        }
        self.text.push('"');
        Ok(())
    }
}

/// The length of a text in JSON, without its quotation marks.
fn quoted_length(text: &str) -> usize {
    let length = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(length).sum()
}
