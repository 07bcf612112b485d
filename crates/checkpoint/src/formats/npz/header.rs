//! The header of a `.npy` file: a Python dictionary in text.
//!
//! Writers use three keys, whose values are a string, a boolean and integers.
//! Everything else is refused.

use std::ops::Range;

use weightloom_layout::DType;

use super::NpzError;
use crate::error::CheckpointError;
use crate::formats::window::Window;

/// The longest header that is read; that of an array has some hundred bytes.
const MAX_HEADER: u64 = 1 << 16;

/// A parsed header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) order: Order,
    pub(super) shape: Vec<usize>,
    /// Where the data begin in the file.
    pub(super) data: u64,
}

/// Which elements follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Rows,
    Columns,
}

impl Header {
    /// Reads the header of an array that has these bytes of the file.
    pub(super) fn read(
        window: &mut Window<'_>,
        array: &str,
        at: Range<u64>,
    ) -> Result<Self, CheckpointError> {
        let file = window.name();
        let failed = |error: NpzError| CheckpointError::format(file, error);
        let mut front = [0; 12];
        let available = (at.end - at.start).min(12) as usize;
        front[..available].copy_from_slice(window.bytes(at.start, available)?);
        let [0x93, b'N', b'U', b'M', b'P', b'Y', major, minor, a, b, c, d] = front else {
            return Err(failed(NpzError::NotArray { array: array.to_owned() }));
        };
        let (before, claimed) = match major {
            1 => (10, u64::from(u16::from_le_bytes([a, b]))),
            2 | 3 => (12, u64::from(u32::from_le_bytes([a, b, c, d]))),
            _ => return Err(failed(NpzError::Version { array: array.to_owned(), major, minor })),
        };
        let limit = (at.end - at.start).saturating_sub(before).min(MAX_HEADER);
        if claimed > limit {
            return Err(failed(NpzError::HeaderLength { array: array.to_owned(), claimed, limit }));
        }
        let text = window.bytes(at.start + before, claimed as usize)?;
        let said = std::str::from_utf8(text).ok().and_then(parse);
        let (dtype, order, shape) =
            said.ok_or_else(|| failed(NpzError::Header { array: array.to_owned() }))?;
        let dtype =
            dtype_of(&dtype).ok_or_else(|| failed(NpzError::DType { array: array.to_owned(), dtype }))?;
        Ok(Self { dtype, order, shape, data: at.start + before + claimed })
    }
}

/// The three values of a header.
fn parse(text: &str) -> Option<(String, Order, Vec<usize>)> {
    let (mut dtype, mut order, mut shape) = (None, None, None);
    let mut rest = text.trim().strip_prefix('{')?;
    loop {
        rest = rest.trim_start();
        if let Some(end) = rest.strip_prefix('}') {
            return end.is_empty().then_some((dtype?, order?, shape?));
        }
        let (key, after) = quoted(rest)?;
        rest = after.trim_start().strip_prefix(':')?.trim_start();
        match key {
            "descr" => {
                let (value, after) = quoted(rest)?;
                (dtype, rest) = (Some(value.to_owned()), after);
            }
            "fortran_order" => {
                let columns = rest.strip_prefix("True").map(|after| (Order::Columns, after));
                let (value, after) = columns.or_else(|| Some((Order::Rows, rest.strip_prefix("False")?)))?;
                (order, rest) = (Some(value), after);
            }
            "shape" => {
                let (inside, after) = rest.strip_prefix('(')?.split_once(')')?;
                (shape, rest) = (Some(sizes(inside)?), after);
            }
            _ => return None,
        }
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').or_else(|| rest.starts_with('}').then_some(rest))?;
    }
}

/// A string in quotes of either kind and what follows; escapes do not occur.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|first| matches!(first, '\'' | '"'))?;
    text[1..].split_once(quote).filter(|(inside, _)| !inside.contains('\\'))
}

/// Integers separated by commas, with an optional trailing comma.
fn sizes(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let text = text.strip_suffix(',').unwrap_or(text);
    // Python 2 appended an L to long integers.
    text.split(',').map(|size| size.trim().trim_end_matches('L').parse().ok()).collect()
}

/// By NumPy's name. It has none for `bf16`, which MLX and others write as two
/// opaque bytes.
fn dtype_of(word: &str) -> Option<DType> {
    Some(match word {
        "<f8" => DType::F64,
        "<f4" => DType::F32,
        "<f2" => DType::F16,
        "<V2" | "|V2" => DType::Bf16,
        "<i8" => DType::I64,
        "<i4" => DType::I32,
        "<i2" => DType::I16,
        "|i1" => DType::I8,
        "<u8" => DType::U64,
        "<u4" => DType::U32,
        "<u2" => DType::U16,
        "|u1" => DType::U8,
        "|b1" => DType::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_of_all_writers_are_read() {
        let said = |dtype: &str, order, shape: &[usize]| Some((dtype.to_owned(), order, shape.to_vec()));
        let numpy = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n";
        assert_eq!(parse(numpy), said("<f4", Order::Rows, &[2, 3]));
        let mlx = "{'descr': '<V2', 'fortran_order': True, 'shape': (64, )}     \n";
        assert_eq!(parse(mlx), said("<V2", Order::Columns, &[64]));
        let turned = r#"{"shape":(),"fortran_order":True,"descr":"|b1"}"#;
        assert_eq!(parse(turned), said("|b1", Order::Columns, &[]));
        assert_eq!(
            parse("{'descr': '<f4', 'fortran_order': False, 'shape': (5L,)}"),
            said("<f4", Order::Rows, &[5])
        );
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "{",
            "{}",
            "{'descr'",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,,2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} or exit()",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
            "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
            "{é: 1}",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
