//! Small numbers as runs and in packed bits.

use super::error::ParquetError;

const EARLY: ParquetError = ParquetError::Damaged("a page ends early");

/// Numbers of a fixed width, some as runs. Reads from bytes that its owner keeps.
#[derive(Clone, Debug)]
pub(super) struct Hybrid {
    at: usize,
    end: usize,
    width: u32,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    /// A number that is repeated.
    Same { number: u32, left: u64 },
    /// Numbers from a bit offset on.
    Packed { bit: u64, left: u64 },
}

impl Hybrid {
    /// Numbers in a range of the bytes.
    pub(super) fn new(range: std::ops::Range<usize>, width: u32) -> Result<Self, ParquetError> {
        if width > 32 {
            return Err(ParquetError::Damaged("numbers have more than 32 bits"));
        }
        Ok(Self { at: range.start, end: range.end, width, run: Run::Same { number: 0, left: 0 } })
    }

    /// The next number.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<u32, ParquetError> {
        loop {
            match &mut self.run {
                Run::Same { left: 0, .. } | Run::Packed { left: 0, .. } => self.run = self.next_run(bytes)?,
                Run::Same { number, left } => {
                    *left -= 1;
                    return Ok(*number);
                }
                Run::Packed { bit, left } => {
                    *left -= 1;
                    let number = bits(bytes.get(..self.end).ok_or(EARLY)?, *bit, self.width).ok_or(EARLY)?;
                    *bit += u64::from(self.width);
                    return Ok(number as u32);
                }
            }
        }
    }

    fn next_run(&mut self, bytes: &[u8]) -> Result<Run, ParquetError> {
        let bytes = bytes.get(..self.end).ok_or(EARLY)?;
        let header = varint(bytes, &mut self.at).ok_or(EARLY)?;
        if header & 1 == 1 {
            let left = (header >> 1).checked_mul(8).ok_or(EARLY)?;
            let bit = self.at as u64 * 8;
            let length = (header >> 1).checked_mul(self.width.into()).ok_or(EARLY)?;
            let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
            // The last run may be cut off after the numbers that are needed.
            self.at = end.ok_or(EARLY)?.min(self.end);
            return Ok(Run::Packed { bit, left });
        }
        let length = self.width.div_ceil(8) as usize;
        let stored = bytes.get(self.at..self.at + length).ok_or(EARLY)?;
        self.at += length;
        let number = stored.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        Ok(Run::Same { number: number as u32, left: header >> 1 })
    }
}

/// A number of `width` bits, at most 64, at a bit offset, the lowest bit first.
pub(super) fn bits(bytes: &[u8], bit: u64, width: u32) -> Option<u64> {
    if width == 0 {
        return Some(0);
    }
    let first = usize::try_from(bit / 8).ok()?;
    let shift = (bit % 8) as u32;
    let count = (shift + width).div_ceil(8) as usize;
    let stored = bytes.get(first..first.checked_add(count)?)?;
    let number = stored.iter().rev().fold(0_u128, |number, &byte| number << 8 | u128::from(byte));
    let mask = (1_u128 << width) - 1;
    Some((number >> shift & mask) as u64)
}

/// A number of seven bits per byte.
pub(super) fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
