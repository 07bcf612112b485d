//! Numbers as differences in packed bits.

use super::error::ParquetError;
use super::hybrid::{bits, varint};
use super::thrift::zigzag;

const EARLY: ParquetError = ParquetError::Damaged("a page ends early");
const BLOCK: ParquetError = ParquetError::Damaged("a block of numbers has an impossible size");

/// Numbers that are stored as differences, in blocks of small ones with a width
/// each. Reads from bytes that its owner keeps.
#[derive(Clone, Debug)]
pub(super) struct Delta {
    at: usize,
    /// Numbers in a small block.
    small: u64,
    small_blocks: usize,
    /// Numbers left, with the next one.
    left: u64,
    next: i64,
    min: i64,
    widths: Vec<u8>,
    /// The small block, and numbers taken from it.
    block: usize,
    taken: u64,
}

impl Delta {
    pub(super) fn new(bytes: &[u8], mut at: usize) -> Result<Self, ParquetError> {
        let mut number = || varint(bytes, &mut at).ok_or(EARLY);
        let (size, small_blocks, left, first) = (number()?, number()?, number()?, number()?);
        if small_blocks == 0 || small_blocks > 1 << 10 || size == 0 || size > 1 << 20 {
            return Err(BLOCK);
        }
        let small = size / small_blocks;
        if small == 0 || !small.is_multiple_of(8) {
            return Err(BLOCK);
        }
        let small_blocks = small_blocks as usize;
        let next = zigzag(first);
        Ok(Self { at, small, small_blocks, left, next, min: 0, widths: Vec::new(), block: 0, taken: 0 })
    }

    /// The number of numbers.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The next number.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<i64, ParquetError> {
        self.left = self.left.checked_sub(1).ok_or(EARLY)?;
        let number = self.next;
        if self.left > 0 {
            let difference = self.difference(bytes)?;
            self.next = number.wrapping_add(self.min).wrapping_add(difference as i64);
        }
        Ok(number)
    }

    fn difference(&mut self, bytes: &[u8]) -> Result<u64, ParquetError> {
        if self.taken == self.small {
            self.at += self.block_bytes()?;
            self.block += 1;
            self.taken = 0;
        }
        if self.block == self.widths.len() {
            self.min = zigzag(varint(bytes, &mut self.at).ok_or(EARLY)?);
            let widths = bytes.get(self.at..).and_then(|rest| rest.get(..self.small_blocks)).ok_or(EARLY)?;
            self.widths = widths.to_vec();
            self.at += self.small_blocks;
            (self.block, self.taken) = (0, 0);
        }
        let width = u32::from(self.widths[self.block]);
        if width > 64 {
            return Err(ParquetError::Damaged("numbers have more than 64 bits"));
        }
        let bit = self.at as u64 * 8 + self.taken * u64::from(width);
        self.taken += 1;
        bits(bytes, bit, width).ok_or(EARLY)
    }

    fn block_bytes(&self) -> Result<usize, ParquetError> {
        let width = self.widths.get(self.block).copied().unwrap_or(0);
        if width > 64 {
            return Err(ParquetError::Damaged("numbers have more than 64 bits"));
        }
        Ok((self.small * u64::from(width) / 8) as usize)
    }

    /// Passes all numbers, and returns the offset after them.
    pub(super) fn end(mut self, bytes: &[u8]) -> Result<usize, ParquetError> {
        while self.left > 0 {
            self.next(bytes)?;
        }
        // The small block is stored whole, and those after it in the block are not.
        if self.taken > 0 {
            self.at += self.block_bytes()?;
        }
        Ok(self.at)
    }
}
