//! Values of a GGUF file's metadata.
//!
//! Arrays keep the type of their elements rather than being lists of values:
//! vocabularies have hundreds of thousands of entries.

use std::fmt::{self, Display, Write};

/// Arrays up to this length are written out in text.
const MOST_IN_TEXT: usize = 64;

/// One value of the metadata.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say what they hold")]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(GgufArray),
}

/// Values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say what they hold")]
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<GgufArray>),
}

impl GgufValue {
    /// The value as a count, if it is a whole number that is not negative.
    pub fn as_count(&self) -> Option<u64> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::U64(value) => Some(value),
            Self::I8(value) => value.try_into().ok(),
            Self::I16(value) => value.try_into().ok(),
            Self::I32(value) => value.try_into().ok(),
            Self::I64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// The value as text, if it is text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }
}

impl GgufArray {
    /// How many values there are.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::I8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::I16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::String(values) => values.len(),
            Self::Array(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole number at a place, if there is one that is not negative.
    pub fn count_at(&self, at: usize) -> Option<u64> {
        match self {
            Self::U32(values) => values.get(at).map(|&value| value.into()),
            Self::I32(values) => values.get(at).and_then(|&value| value.try_into().ok()),
            Self::U64(values) => values.get(at).copied(),
            Self::I64(values) => values.get(at).and_then(|&value| value.try_into().ok()),
            _ => None,
        }
    }

    fn noun(&self) -> &'static str {
        match self {
            Self::String(_) => "strings",
            Self::Array(_) => "arrays",
            Self::Bool(_) => "truth values",
            _ => "numbers",
        }
    }
}

impl Display for GgufValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(value) => value.fmt(f),
            Self::I8(value) => value.fmt(f),
            Self::U16(value) => value.fmt(f),
            Self::I16(value) => value.fmt(f),
            Self::U32(value) => value.fmt(f),
            Self::I32(value) => value.fmt(f),
            Self::U64(value) => value.fmt(f),
            Self::I64(value) => value.fmt(f),
            Self::F32(value) => value.fmt(f),
            Self::F64(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::String(value) => value.fmt(f),
            Self::Array(values) => values.fmt(f),
        }
    }
}

impl Display for GgufArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.len() > MOST_IN_TEXT {
            return write!(f, "[{} {}]", self.len(), self.noun());
        }
        match self {
            Self::U8(values) => write_list(f, values),
            Self::I8(values) => write_list(f, values),
            Self::U16(values) => write_list(f, values),
            Self::I16(values) => write_list(f, values),
            Self::U32(values) => write_list(f, values),
            Self::I32(values) => write_list(f, values),
            Self::U64(values) => write_list(f, values),
            Self::I64(values) => write_list(f, values),
            Self::F32(values) => write_list(f, values),
            Self::F64(values) => write_list(f, values),
            Self::Bool(values) => write_list(f, values),
            Self::String(values) => write_list(f, values),
            Self::Array(values) => write_list(f, values),
        }
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, values: &[impl Display]) -> fmt::Result {
    f.write_char('[')?;
    for (at, value) in values.iter().enumerate() {
        write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
    }
    f.write_char(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arrays_are_summed_up_in_text() {
        let text = |array| GgufValue::Array(array).to_string();
        assert_eq!(text(GgufArray::I32(vec![1, -2])), "[1, -2]");
        assert_eq!(text(GgufArray::Array(vec![GgufArray::Bool(vec![true])])), "[[true]]");
        assert_eq!(text(GgufArray::String(vec![String::new(); 65])), "[65 strings]");
        assert_eq!(text(GgufArray::F32(vec![0.5; 65])), "[65 numbers]");
    }
}
