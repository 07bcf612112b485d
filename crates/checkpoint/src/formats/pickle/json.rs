//! Conversion of plain values to JSON.
//!
//! Sets and tuples become lists, bytes become lists of numbers, keys become
//! text, and numbers that JSON cannot represent become text.

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
        JsonConverter { pickle: self, name, budget }.value(value, 0)
    }
}

struct JsonConverter<'w, 'a> {
    pickle: &'w Pickle<'a>,
    name: &'w str,
    budget: &'w mut Budget,
}

impl<'a> JsonConverter<'_, 'a> {
    fn unexpected(&self, expected: &'static str) -> PickleError {
        PickleError::Unexpected { name: self.name.to_owned(), expected }
    }

    fn value(&mut self, value: Value<'a>, depth: usize) -> Result<Json, PickleError> {
        self.budget.spend(0)?;
        if depth > MAX_DEPTH {
            return Err(PickleError::Deep { limit: MAX_DEPTH });
        }
        Ok(match value {
            Value::None => Json::Null,
            Value::Bool(truth) => Json::Bool(truth),
            Value::Int(number) => Json::from(number),
            Value::Long(bytes) => self.long(bytes)?,
            Value::Float(number) => match serde_json::Number::from_f64(number) {
                Some(number) => Json::Number(number),
                None => Json::from(number.to_string()),
            },
            Value::Text(text) => {
                self.budget.spend(text.len())?;
                Json::from(text)
            }
            Value::Bytes(bytes) => self.bytes(bytes)?,
            Value::Global(Global::DType(name)) => Json::from(format!("torch.{name}")),
            Value::Global(_) => return Err(self.unexpected("a plain value, not a class")),
            Value::Node(_) => self.node(value, depth)?,
        })
    }

    fn node(&mut self, value: Value<'a>, depth: usize) -> Result<Json, PickleError> {
        let pickle = self.pickle;
        match pickle.node(value) {
            Some(Node::List(items) | Node::Tuple(items) | Node::Set(items)) => {
                let items = items.iter().map(|&item| self.value(item, depth + 1));
                Ok(Json::Array(items.collect::<Result<_, _>>()?))
            }
            Some(Node::Dict(pairs)) => {
                let pairs =
                    pairs.iter().map(|&(key, value)| Ok((self.key(key)?, self.value(value, depth + 1)?)));
                Ok(Json::Object(pairs.collect::<Result<_, PickleError>>()?))
            }
            Some(Node::Object(object)) => self.object(object, depth),
            Some(Node::Persistent(_)) | None => Err(self.unexpected("a plain value, not a storage")),
        }
    }

    fn key(&mut self, key: Value<'a>) -> Result<String, PickleError> {
        match key {
            Value::Text(text) => {
                self.budget.spend(text.len())?;
                Ok(text.to_owned())
            }
            Value::Int(number) => Ok(number.to_string()),
            _ => Err(self.unexpected("a dict whose keys are texts or numbers")),
        }
    }

    /// The few calls with plain results.
    fn object(&mut self, object: &Object<'a>, depth: usize) -> Result<Json, PickleError> {
        let arguments = self.pickle.items(object.arguments).unwrap_or_default();
        match (object.class, arguments) {
            (Global::Set | Global::Bytearray, []) => Ok(Json::Array(Vec::new())),
            (Global::Set | Global::Bytearray, &[items]) => self.value(items, depth + 1),
            (Global::Encode, &[Value::Text(text), Value::Text("latin1")]) => self.latin(text),
            (Global::Device, &[Value::Text(kind)]) => Ok(Json::from(kind)),
            (Global::Device, &[Value::Text(kind), Value::Int(number)]) => {
                Ok(Json::from(format!("{kind}:{number}")))
            }
            (Global::Path, parts) => {
                let parts: Option<Vec<&str>> = parts.iter().map(Value::text).collect();
                let path = parts.ok_or_else(|| self.unexpected("a path"))?.join("/");
                self.budget.spend(path.len())?;
                Ok(Json::from(path))
            }
            _ => Err(self.unexpected("a plain value, not an object")),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<Json, PickleError> {
        // A number takes more room than a byte.
        self.budget.spend(bytes.len().saturating_mul(32))?;
        Ok(Json::from(bytes))
    }

    /// Bytes that were written as the characters of the same numbers.
    fn latin(&mut self, text: &str) -> Result<Json, PickleError> {
        self.budget.spend(text.len().saturating_mul(32))?;
        let bytes: Result<Vec<u8>, _> =
            text.chars().map(|character| u8::try_from(u32::from(character))).collect();
        bytes.map(Json::from).map_err(|_| self.unexpected("bytes"))
    }

    fn long(&mut self, bytes: &[u8]) -> Result<Json, PickleError> {
        self.budget.spend(bytes.len().saturating_mul(2))?;
        // Seeds are often unsigned and need a ninth byte for the sign.
        if let (Some((&0, low)), 9) = (bytes.split_last(), bytes.len())
            && let Ok(low) = low.try_into()
        {
            return Ok(Json::from(u64::from_le_bytes(low)));
        }
        let digits: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
        Ok(Json::from(format!("0x{digits}")))
    }
}
