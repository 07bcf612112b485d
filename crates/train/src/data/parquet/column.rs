//! The values of a column with their levels, page by page.

use super::Source;
use super::delta::Delta;
use super::error::ParquetError;
use super::hybrid::{Hybrid, bits};
use super::metadata::ColumnChunk;
use super::page::{Levels, Page, PageKind};
use super::schema::{Leaf, Physical};

const EARLY: ParquetError = ParquetError::Damaged("a page ends early");

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Bytes(Vec<u8>),
}

/// The levels of the next value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) repeated: u16,
    pub(super) defined: u16,
}

/// A position in a column of a row group.
pub(super) struct Column {
    leaf: Leaf,
    chunk: ColumnChunk,
    /// Offset of the next page.
    next_page: u64,
    /// Values left in all pages.
    left: u64,
    dictionary: Vec<Value>,
    page: Vec<u8>,
    /// Values left in the page.
    page_left: u64,
    repeated: Option<Hybrid>,
    defined: Option<Hybrid>,
    values: Values,
    level: Option<Level>,
}

/// The encoding of the values of a page.
enum Values {
    None,
    Plain {
        at: usize,
    },
    Bits {
        bit: u64,
    },
    BoolRuns(Hybrid),
    Dictionary(Hybrid),
    Delta(Delta),
    DeltaLengths {
        lengths: Delta,
        at: usize,
    },
    DeltaBytes {
        prefixes: Delta,
        lengths: Delta,
        at: usize,
        last: Vec<u8>,
    },
    /// The bytes of numbers, apart by significance.
    Split {
        at: usize,
        next: usize,
        count: usize,
    },
}

impl Column {
    pub(super) fn new(leaf: Leaf, chunk: ColumnChunk) -> Self {
        Self {
            leaf,
            chunk,
            next_page: chunk.start,
            left: chunk.values,
            dictionary: Vec::new(),
            page: Vec::new(),
            page_left: 0,
            repeated: None,
            defined: None,
            values: Values::None,
            level: None,
        }
    }

    /// The levels of the next value; `None` at the end of the column.
    pub(super) fn peek(&mut self, source: &mut dyn Source) -> Result<Option<Level>, ParquetError> {
        if self.level.is_some() || self.left == 0 {
            return Ok(self.level);
        }
        while self.page_left == 0 {
            self.load(source)?;
        }
        let next = |levels: &mut Option<Hybrid>, most: u16| match levels {
            None => Ok(most),
            Some(levels) => match u16::try_from(levels.next(&self.page)?) {
                Ok(level) if level <= most => Ok(level),
                _ => Err(ParquetError::Damaged("a level is too high")),
            },
        };
        let repeated = match &self.repeated {
            None => 0,
            Some(_) => next(&mut self.repeated, self.leaf.max_repeated)?,
        };
        let defined = next(&mut self.defined, self.leaf.max_defined)?;
        self.level = Some(Level { repeated, defined });
        Ok(self.level)
    }

    /// Passes the next value and returns it, or null if it is not there.
    pub(super) fn next(&mut self, source: &mut dyn Source) -> Result<Value, ParquetError> {
        let level = self.peek(source)?.ok_or(ParquetError::Damaged("a column has too few values"))?;
        self.level = None;
        self.left -= 1;
        self.page_left -= 1;
        if level.defined < self.leaf.max_defined { Ok(Value::Null) } else { self.value() }
    }

    /// Reads the next page.
    fn load(&mut self, source: &mut dyn Source) -> Result<(), ParquetError> {
        let end = self.chunk.start + self.chunk.bytes;
        if self.next_page >= end {
            return Err(ParquetError::Damaged("a column has too few pages"));
        }
        let page = Page::read(source, self.next_page, end, self.chunk.codec)?;
        self.next_page = page.next;
        self.page = page.bytes;
        match page.kind {
            PageKind::Other => Ok(()),
            PageKind::Dictionary { values } => self.load_dictionary(values),
            PageKind::Data { values, encoding, levels } => {
                let at = self.load_levels(levels)?;
                self.page_left = values;
                self.values = self.encoding(encoding, at)?;
                Ok(())
            }
        }
    }

    fn load_dictionary(&mut self, count: u64) -> Result<(), ParquetError> {
        if self.leaf.kind == Physical::Bool {
            return Err(ParquetError::Damaged("a dictionary of booleans"));
        }
        self.values = Values::Plain { at: 0 };
        self.dictionary.clear();
        for _ in 0..count {
            let value = self.value()?;
            self.dictionary.push(value);
        }
        Ok(())
    }

    /// Prepares the levels of a page. Returns the offset of its values.
    fn load_levels(&mut self, levels: Levels) -> Result<usize, ParquetError> {
        let [max_repeated, max_defined] = [self.leaf.max_repeated, self.leaf.max_defined];
        let width = |most: u16| u16::BITS - most.leading_zeros();
        match levels {
            Levels::Inline => {
                let mut at = 0;
                let mut inline = |most: u16| {
                    if most == 0 {
                        return Ok(None);
                    }
                    let length = self.page.get(at..at + 4).ok_or(EARLY)?;
                    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
                    let start = at + 4;
                    at = start.checked_add(length).filter(|&end| end <= self.page.len()).ok_or(EARLY)?;
                    Hybrid::new(start..at, width(most)).map(Some)
                };
                (self.repeated, self.defined) = (inline(max_repeated)?, inline(max_defined)?);
                Ok(at)
            }
            Levels::Lengths { repeated, defined } => {
                // The page has as many bytes.
                let end = repeated + defined;
                let levels = |most: u16, range| match most {
                    0 => Ok(None),
                    most => Hybrid::new(range, width(most)).map(Some),
                };
                self.repeated = levels(max_repeated, 0..repeated)?;
                self.defined = levels(max_defined, repeated..end)?;
                Ok(end)
            }
        }
    }

    fn encoding(&self, encoding: i64, at: usize) -> Result<Values, ParquetError> {
        let page = &*self.page;
        let kind = self.leaf.kind;
        let is_bytes = matches!(kind, Physical::Bytes | Physical::Fixed(_));
        // A page of nulls alone has no values.
        if at >= page.len() {
            return Ok(Values::None);
        }
        Ok(match encoding {
            0 if kind == Physical::Bool => Values::Bits { bit: at as u64 * 8 },
            0 => Values::Plain { at },
            2 | 8 => Values::Dictionary(Hybrid::new(at + 1..page.len(), page[at].into())?),
            3 if kind == Physical::Bool => {
                // After its length in four bytes.
                Values::BoolRuns(Hybrid::new((at + 4).min(page.len())..page.len(), 1)?)
            }
            5 if matches!(kind, Physical::Int32 | Physical::Int64) => Values::Delta(Delta::new(page, at)?),
            6 if kind == Physical::Bytes => {
                let lengths = Delta::new(page, at)?;
                self.check_count(&lengths)?;
                Values::DeltaLengths { at: lengths.clone().end(page)?, lengths }
            }
            7 if is_bytes => {
                let prefixes = Delta::new(page, at)?;
                self.check_count(&prefixes)?;
                let lengths = Delta::new(page, prefixes.clone().end(page)?)?;
                self.check_count(&lengths)?;
                Values::DeltaBytes { prefixes, at: lengths.clone().end(page)?, lengths, last: Vec::new() }
            }
            9 => {
                let width = self.width().ok_or(ParquetError::Damaged("strings cannot be split by bytes"))?;
                Values::Split { at, next: 0, count: (page.len() - at) / width }
            }
            other => return Err(ParquetError::Unsupported(format!("encoding {other} for such a column"))),
        })
    }

    /// Guards against long loops over numbers that take no bytes.
    fn check_count(&self, numbers: &Delta) -> Result<(), ParquetError> {
        match numbers.left() <= self.page_left {
            true => Ok(()),
            false => Err(ParquetError::Damaged("a page has more values than its header says")),
        }
    }

    /// The bytes of a value of fixed size.
    fn width(&self) -> Option<usize> {
        match self.leaf.kind {
            Physical::Int32 | Physical::Float => Some(4),
            Physical::Int64 | Physical::Double => Some(8),
            Physical::Int96 => Some(12),
            Physical::Fixed(length) => Some(length),
            Physical::Bool | Physical::Bytes => None,
        }
    }

    /// The next value of the page.
    fn value(&mut self) -> Result<Value, ParquetError> {
        let width = self.width();
        let page = &*self.page;
        let take = |at: &mut usize, length: usize| {
            let end = at.checked_add(length).ok_or(EARLY)?;
            let bytes = page.get(*at..end).ok_or(EARLY)?;
            *at = end;
            Ok::<_, ParquetError>(bytes)
        };
        let size = |number: i64| usize::try_from(number).map_err(|_| EARLY);
        match &mut self.values {
            Values::None => Err(EARLY),
            Values::Plain { at } => {
                let length = match width {
                    Some(width) => width,
                    None => {
                        let length = take(at, 4)?;
                        u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize
                    }
                };
                Ok(plain(self.leaf.kind, take(at, length)?))
            }
            Values::Bits { bit } => {
                *bit += 1;
                Ok(Value::Bool(bits(page, *bit - 1, 1).ok_or(EARLY)? == 1))
            }
            Values::BoolRuns(runs) => Ok(Value::Bool(runs.next(page)? == 1)),
            Values::Dictionary(indices) => {
                let index = indices.next(page)? as usize;
                let unknown = ParquetError::Damaged("a value is not in its dictionary");
                self.dictionary.get(index).cloned().ok_or(unknown)
            }
            Values::Delta(numbers) => {
                let number = numbers.next(page)?;
                // Differences of 32-bit numbers wrap around.
                let is_small = self.leaf.kind == Physical::Int32;
                Ok(Value::Int(if is_small { (number as i32).into() } else { number }))
            }
            Values::DeltaLengths { lengths, at } => {
                let length = size(lengths.next(page)?)?;
                Ok(Value::Bytes(take(at, length)?.to_vec()))
            }
            Values::DeltaBytes { prefixes, lengths, at, last } => {
                let (prefix, length) = (size(prefixes.next(page)?)?, size(lengths.next(page)?)?);
                if prefix > last.len() {
                    return Err(ParquetError::Damaged("a string continues one that is shorter"));
                }
                last.truncate(prefix);
                last.extend_from_slice(take(at, length)?);
                Ok(Value::Bytes(last.clone()))
            }
            Values::Split { at, next, count } => {
                let width = width.unwrap_or(0);
                if *next >= *count {
                    return Err(EARLY);
                }
                let bytes: Vec<u8> = (0..width).map(|byte| page[*at + byte * *count + *next]).collect();
                *next += 1;
                Ok(plain(self.leaf.kind, &bytes))
            }
        }
    }
}

/// A value from its bytes, of which there are as many as its type has.
fn plain(kind: Physical, bytes: &[u8]) -> Value {
    let number = || bytes.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
    match kind {
        Physical::Int32 => Value::Int((number() as u32 as i32).into()),
        Physical::Int64 => Value::Int(number() as i64),
        Physical::Float => Value::Float(f32::from_bits(number() as u32).into()),
        Physical::Double => Value::Float(f64::from_bits(number())),
        Physical::Bytes | Physical::Fixed(_) => Value::Bytes(bytes.to_vec()),
        // Old timestamps and booleans, which are never read as text.
        Physical::Int96 | Physical::Bool => Value::Null,
    }
}
