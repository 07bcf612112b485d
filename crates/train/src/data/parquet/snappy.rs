//! Snappy's block format.

use super::error::ParquetError;
use super::hybrid::varint;

const DAMAGED: ParquetError = ParquetError::Damaged("a Snappy block is invalid");

/// Decompresses a block of at most `most` bytes.
pub(super) fn decompress(block: &[u8], most: usize) -> Result<Vec<u8>, ParquetError> {
    let mut at = 0;
    let length = varint(block, &mut at).and_then(|length| usize::try_from(length).ok());
    let length = length.filter(|&length| length <= most).ok_or(DAMAGED)?;
    let mut bytes: Vec<u8> = Vec::new();
    let little = |range: std::ops::Range<usize>| {
        let stored = block.get(range).ok_or(DAMAGED)?;
        Ok::<_, ParquetError>(stored.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    };
    while at < block.len() {
        let tag = block[at];
        at += 1;
        let high = usize::from(tag >> 2);
        let (offset, count) = match tag & 3 {
            0 => {
                let mut count = high + 1;
                if high >= 60 {
                    let wide = high - 59;
                    count = little(at..at + wide)? + 1;
                    at += wide;
                }
                let end = at.checked_add(count).ok_or(DAMAGED)?;
                bytes.extend_from_slice(block.get(at..end).ok_or(DAMAGED)?);
                at = end;
                (0, 0)
            }
            1 => {
                at += 1;
                (usize::from(tag >> 5) << 8 | little(at - 1..at)?, (high & 7) + 4)
            }
            2 => {
                at += 2;
                (little(at - 2..at)?, high + 1)
            }
            _ => {
                at += 4;
                (little(at - 4..at)?, high + 1)
            }
        };
        if count > 0 {
            if offset == 0 || offset > bytes.len() {
                return Err(DAMAGED);
            }
            // The copy may overlap what it writes.
            for _ in 0..count {
                bytes.push(bytes[bytes.len() - offset]);
            }
        }
        if bytes.len() > length {
            return Err(DAMAGED);
        }
    }
    if bytes.len() == length { Ok(bytes) } else { Err(DAMAGED) }
}
