//! The header of a GGUF file: counts, metadata, and where tensors are.
//!
//! Its length is unknown, so it is read in pieces of doubling size. Counts are
//! not trusted: nothing is allocated before the bytes that justify it are read.

use rustc_hash::FxHashSet;

use super::GgufError;
use super::value::{GgufArray, GgufValue};
use crate::error::CheckpointError;
use crate::storage::Storage;

/// The longest header that is read. Those of the largest vocabularies have a
/// tenth of it.
const MAX_HEADER: u64 = 1 << 27;

/// Bytes of the first piece.
const FIRST_PIECE: u64 = 1 << 16;

/// Arrays in arrays in arrays; more have never been seen.
const MAX_DEPTH: usize = 4;

/// The most dims that a tensor of the format has.
const MAX_DIMS: u32 = 4;

/// The parsed header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Vec<(String, GgufValue)>,
    pub(super) tensors: Vec<TensorInfo>,
    /// Where the header ends.
    pub(super) end: u64,
    /// The file's length.
    pub(super) length: u64,
}

/// A tensor of the header.
#[derive(Debug)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    /// Sizes, the slowest dim first.
    pub(super) shape: Vec<u64>,
    /// The number of its type.
    pub(super) kind: u32,
    /// Its offset from the beginning of the data.
    pub(super) offset: u64,
}

impl Header {
    pub(super) fn read(storage: &dyn Storage, name: &str) -> Result<Self, CheckpointError> {
        let length = storage.length(name)?;
        let mut bytes = HeaderReader { storage, name, length, read: Vec::new(), at: 0 };
        if bytes.take(4)? != b"GGUF" {
            return Err(bytes.failed(GgufError::NotGguf));
        }
        match bytes.u32()? {
            2 | 3 => {}
            // The other byte order shows in the version.
            version if matches!(version.swap_bytes(), 1..=3) => {
                return Err(bytes.failed(GgufError::BigEndian));
            }
            version => return Err(bytes.failed(GgufError::Version { version })),
        }
        let (tensor_count, value_count) = (bytes.u64()?, bytes.u64()?);
        let mut metadata = Vec::new();
        let mut seen = FxHashSet::default();
        for _ in 0..value_count {
            let key = bytes.text("a key")?;
            let kind = bytes.u32()?;
            let value = bytes.value(&key, kind)?;
            if !seen.insert(key.clone()) {
                return Err(bytes.failed(GgufError::KeyTwice { key }));
            }
            metadata.push((key, value));
        }
        let mut tensors = Vec::new();
        for _ in 0..tensor_count {
            tensors.push(bytes.tensor()?);
        }
        Ok(Self { metadata, tensors, end: bytes.at as u64, length })
    }
}

/// Reads a file from its beginning, as far as needed.
struct HeaderReader<'a> {
    storage: &'a dyn Storage,
    name: &'a str,
    length: u64,
    read: Vec<u8>,
    at: usize,
}

impl HeaderReader<'_> {
    fn failed(&self, error: GgufError) -> CheckpointError {
        CheckpointError::format(self.name, error)
    }

    /// The next bytes.
    fn take(&mut self, count: u64) -> Result<&[u8], CheckpointError> {
        let end = (self.at as u64).saturating_add(count);
        if end > self.length {
            return Err(self.failed(GgufError::Short { end, length: self.length }));
        }
        if end > MAX_HEADER {
            return Err(self.failed(GgufError::HeaderTooLong { limit: MAX_HEADER }));
        }
        let have = self.read.len();
        if end > have as u64 {
            let want = end.max(2 * have as u64).max(FIRST_PIECE).min(self.length);
            self.read.resize(want as usize, 0);
            self.storage.read_at(self.name, have as u64, &mut self.read[have..])?;
        }
        let start = std::mem::replace(&mut self.at, end as usize);
        Ok(&self.read[start..self.at])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CheckpointError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, CheckpointError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, CheckpointError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length-prefixed string.
    fn text(&mut self, of: &str) -> Result<String, CheckpointError> {
        let count = self.u64()?;
        let text = self.take(count)?.to_vec();
        String::from_utf8(text).map_err(|_| self.failed(GgufError::NotText { of: of.to_owned() }))
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<GgufValue, CheckpointError> {
        Ok(match kind {
            0 => GgufValue::U8(self.array().map(u8::from_le_bytes)?),
            1 => GgufValue::I8(self.array().map(i8::from_le_bytes)?),
            2 => GgufValue::U16(self.array().map(u16::from_le_bytes)?),
            3 => GgufValue::I16(self.array().map(i16::from_le_bytes)?),
            4 => GgufValue::U32(self.u32()?),
            5 => GgufValue::I32(self.array().map(i32::from_le_bytes)?),
            6 => GgufValue::F32(self.array().map(f32::from_le_bytes)?),
            7 => GgufValue::Bool(self.array()? != [0]),
            8 => GgufValue::String(self.text(key)?),
            9 => GgufValue::Array(self.values(key, 1)?),
            10 => GgufValue::U64(self.u64()?),
            11 => GgufValue::I64(self.array().map(i64::from_le_bytes)?),
            12 => GgufValue::F64(self.array().map(f64::from_le_bytes)?),
            _ => return Err(self.failed(GgufError::ValueType { key: key.to_owned(), kind })),
        })
    }

    fn values(&mut self, key: &str, depth: usize) -> Result<GgufArray, CheckpointError> {
        if depth > MAX_DEPTH {
            return Err(self.failed(GgufError::Depth { key: key.to_owned(), limit: MAX_DEPTH }));
        }
        let (kind, count) = (self.u32()?, self.u64()?);
        Ok(match kind {
            0 => GgufArray::U8(self.numbers(count, u8::from_le_bytes)?),
            1 => GgufArray::I8(self.numbers(count, i8::from_le_bytes)?),
            2 => GgufArray::U16(self.numbers(count, u16::from_le_bytes)?),
            3 => GgufArray::I16(self.numbers(count, i16::from_le_bytes)?),
            4 => GgufArray::U32(self.numbers(count, u32::from_le_bytes)?),
            5 => GgufArray::I32(self.numbers(count, i32::from_le_bytes)?),
            6 => GgufArray::F32(self.numbers(count, f32::from_le_bytes)?),
            7 => GgufArray::Bool(self.numbers(count, |byte: [u8; 1]| byte != [0])?),
            8 => GgufArray::String(self.each(count, |bytes| bytes.text(key))?),
            9 => GgufArray::Array(self.each(count, |bytes| bytes.values(key, depth + 1))?),
            10 => GgufArray::U64(self.numbers(count, u64::from_le_bytes)?),
            11 => GgufArray::I64(self.numbers(count, i64::from_le_bytes)?),
            12 => GgufArray::F64(self.numbers(count, f64::from_le_bytes)?),
            _ => return Err(self.failed(GgufError::ValueType { key: key.to_owned(), kind })),
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        count: u64,
        number: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, CheckpointError> {
        let bytes = self.take(count.saturating_mul(N as u64))?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| number(bytes)).collect())
    }

    /// Values of variable length. Each takes bytes of the file, so that a false
    /// count ends with the file.
    fn each<T>(
        &mut self,
        count: u64,
        mut value: impl FnMut(&mut Self) -> Result<T, CheckpointError>,
    ) -> Result<Vec<T>, CheckpointError> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(value(self)?);
        }
        Ok(values)
    }

    fn tensor(&mut self) -> Result<TensorInfo, CheckpointError> {
        let name = self.text("a tensor's name")?;
        let count = self.u32()?;
        if count > MAX_DIMS {
            return Err(self.failed(GgufError::Dims { tensor: name, count, limit: MAX_DIMS }));
        }
        let mut shape = Vec::new();
        for _ in 0..count {
            shape.push(self.u64()?);
        }
        // The format counts the fastest dim first.
        shape.reverse();
        Ok(TensorInfo { name, shape, kind: self.u32()?, offset: self.u64()? })
    }
}
