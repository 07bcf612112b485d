//! Thrift's compact protocol, in which Parquet writes its metadata.

use super::error::ParquetError;

/// Most nested structs and lists. Parquet has seven.
const MAX_DEPTH: usize = 24;

const EARLY: ParquetError = ParquetError::Damaged("metadata end early");

/// A value of the protocol. Maps and sets do not occur.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Thrift<'a> {
    Bool(bool),
    Int(i64),
    Double,
    Bytes(&'a [u8]),
    List(Vec<Thrift<'a>>),
    Struct(Vec<(i16, Thrift<'a>)>),
}

impl<'a> Thrift<'a> {
    /// Reads a struct, and returns it with its length in bytes.
    pub(super) fn read(bytes: &'a [u8]) -> Result<(Self, usize), ThriftError> {
        let mut reader = Reader { bytes, at: 0 };
        let value = reader.fields(0)?;
        Ok((value, reader.at))
    }

    /// A field of a struct.
    pub(super) fn field(&self, id: i16) -> Option<&Self> {
        match self {
            Self::Struct(fields) => fields.iter().find(|(field, _)| *field == id).map(|(_, value)| value),
            _ => None,
        }
    }

    /// An integer field.
    pub(super) fn int(&self, id: i16) -> Option<i64> {
        match self.field(id) {
            Some(Self::Int(number)) => Some(*number),
            _ => None,
        }
    }

    /// A boolean field.
    pub(super) fn bool(&self, id: i16) -> Option<bool> {
        match self.field(id) {
            Some(Self::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// A length or offset.
    pub(super) fn size(&self, id: i16) -> Result<u64, ParquetError> {
        let size = self.int(id).ok_or(ParquetError::Damaged("a size is missing"))?;
        u64::try_from(size).map_err(|_| ParquetError::Damaged("a size is negative"))
    }

    /// The items of a list field; none if it is missing.
    pub(super) fn list(&self, id: i16) -> &[Self] {
        match self.field(id) {
            Some(Self::List(items)) => items,
            _ => &[],
        }
    }

    /// A string field.
    pub(super) fn text(&self, id: i16) -> Option<String> {
        match self.field(id) {
            Some(Self::Bytes(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }
}

/// Why bytes are not a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ThriftError {
    /// More bytes may help.
    Early,
    Damaged(&'static str),
}

impl From<ThriftError> for ParquetError {
    fn from(error: ThriftError) -> Self {
        match error {
            ThriftError::Early => EARLY,
            ThriftError::Damaged(what) => Self::Damaged(what),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, ThriftError> {
        let byte = *self.bytes.get(self.at).ok_or(ThriftError::Early)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, ThriftError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(ThriftError::Damaged("an integer is too long"))
    }

    fn zigzag(&mut self) -> Result<i64, ThriftError> {
        self.varint().map(zigzag)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], ThriftError> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let bytes = end.and_then(|end| self.bytes.get(self.at..end)).ok_or(ThriftError::Early)?;
        self.at += bytes.len();
        Ok(bytes)
    }

    fn fields(&mut self, depth: usize) -> Result<Thrift<'a>, ThriftError> {
        let mut fields = Vec::new();
        let mut id = 0_i16;
        loop {
            let header = self.byte()?;
            let (delta, kind) = (header >> 4, header & 15);
            if kind == 0 {
                return Ok(Thrift::Struct(fields));
            }
            id = match delta {
                0 => self.zigzag()? as i16,
                delta => id.wrapping_add(delta.into()),
            };
            let value = match kind {
                1 | 2 => Thrift::Bool(kind == 1),
                kind => self.value(kind, depth + 1)?,
            };
            fields.push((id, value));
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<Thrift<'a>, ThriftError> {
        if depth > MAX_DEPTH {
            return Err(ThriftError::Damaged("metadata are nested too deeply"));
        }
        Ok(match kind {
            // In a list.
            1 | 2 => Thrift::Bool(self.byte()? == 1),
            3 => Thrift::Int((self.byte()? as i8).into()),
            4..=6 => Thrift::Int(self.zigzag()?),
            7 => {
                self.take(8)?;
                Thrift::Double
            }
            8 => {
                let length = self.varint()?;
                Thrift::Bytes(self.take(length)?)
            }
            9 => {
                let header = self.byte()?;
                let count = match header >> 4 {
                    15 => self.varint()?,
                    count => count.into(),
                };
                let mut items = Vec::new();
                for _ in 0..count {
                    // Each item takes a byte or more, so a false count ends here.
                    items.push(self.value(header & 15, depth + 1)?);
                }
                Thrift::List(items)
            }
            12 => self.fields(depth)?,
            _ => return Err(ThriftError::Damaged("metadata have a value of an unknown type")),
        })
    }
}

/// Undoes the encoding of signed numbers.
pub(super) fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}
