//! Typed access to the metadata of a GGUF file.

use std::collections::BTreeMap;

use weightloom_checkpoint::formats::gguf::{GgufArray, GgufValue};

use super::error::TextError;

/// Metadata of a GGUF file.
#[derive(Clone, Copy)]
pub(super) struct GgufMetadata<'a>(pub(super) &'a BTreeMap<String, GgufValue>);

impl<'a> GgufMetadata<'a> {
    pub(super) fn text(self, key: &str) -> Result<Option<&'a str>, TextError> {
        self.get(key, "a string", GgufValue::as_text)
    }

    pub(super) fn count(self, key: &str) -> Result<Option<u64>, TextError> {
        self.get(key, "an integer", GgufValue::as_count)
    }

    pub(super) fn flag(self, key: &str) -> Result<Option<bool>, TextError> {
        self.get(key, "true or false", |value| match value {
            GgufValue::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A number by its shortest decimal form: `1e-5`, not the nearest `f32`
    /// written out.
    pub(super) fn number(self, key: &str) -> Result<Option<f64>, TextError> {
        self.get(key, "a number", |value| match value {
            GgufValue::F32(number) if number.is_finite() => number.to_string().parse().ok(),
            GgufValue::F64(number) if number.is_finite() => Some(*number),
            value => value.as_count().map(|count| count as f64),
        })
    }

    pub(super) fn texts(self, key: &str) -> Result<Option<&'a [String]>, TextError> {
        self.get(key, "a list of strings", |value| match value {
            GgufValue::Array(GgufArray::String(texts)) => Some(&texts[..]),
            _ => None,
        })
    }

    pub(super) fn numbers(self, key: &str) -> Result<Option<&'a [f32]>, TextError> {
        self.get(key, "a list of numbers", |value| match value {
            GgufValue::Array(GgufArray::F32(numbers)) => Some(&numbers[..]),
            _ => None,
        })
    }

    /// A list of integers.
    pub(super) fn counts(self, key: &str) -> Result<Option<Vec<u64>>, TextError> {
        self.get(key, "a list of integers", |value| match value {
            GgufValue::Array(array) => (0..array.len()).map(|index| array.count_at(index)).collect(),
            _ => None,
        })
    }

    fn get<T>(
        self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, TextError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| TextError::value(key, expected, value))
    }

    /// One count, which may be a list with the same count for every layer.
    pub(super) fn one_count(self, key: &str) -> Result<Option<u64>, TextError> {
        let Some(GgufValue::Array(_)) = self.0.get(key) else { return self.count(key) };
        let counts = self.counts(key)?.unwrap_or_default();
        match counts.first() {
            Some(&first) if counts.iter().all(|&count| count == first) => Ok(Some(first)),
            _ => Err(TextError::PerLayer { key: key.to_owned() }),
        }
    }
}

/// Unwraps the value of a required key.
pub(super) fn required<T>(value: Option<T>, key: &str) -> Result<T, TextError> {
    value.ok_or_else(|| TextError::Missing { key: key.to_owned() })
}
