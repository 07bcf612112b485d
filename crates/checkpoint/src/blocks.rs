//! Blocks of quantised elements, as GGUF files hold them.
//!
//! Blocks of 32 have one scale and are in `plain`; blocks of 256 (the
//! K-quants) have scales of scales and are in `nested`. Values are computed in
//! `f32` in the order that the reference takes, product first, so that results
//! have its bits.

mod nested;
mod plain;

use std::fmt;

use half::f16;

/// How a block of quantised elements is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of the format")]
pub enum BlockFormat {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl BlockFormat {
    /// Elements of one block.
    pub const fn elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Decodes one block.
    ///
    /// `block` has [`bytes`](Self::bytes) bytes and `into` has
    /// [`elements`](Self::elements) elements. A shorter block counts as filled
    /// up with zeros, and what does not fit is left out; neither panics.
    pub fn decode(self, block: &[u8], into: &mut [f32]) {
        debug_assert_eq!((block.len(), into.len()), (self.bytes(), self.elements()), "{self}");
        match self {
            Self::Q4_0 => whole(block, into, plain::q4_0),
            Self::Q4_1 => whole(block, into, plain::q4_1),
            Self::Q5_0 => whole(block, into, plain::q5_0),
            Self::Q5_1 => whole(block, into, plain::q5_1),
            Self::Q8_0 => whole(block, into, plain::q8_0),
            Self::Q2K => whole(block, into, nested::q2),
            Self::Q3K => whole(block, into, nested::q3),
            Self::Q4K => whole(block, into, nested::q4),
            Self::Q5K => whole(block, into, nested::q5),
            Self::Q6K => whole(block, into, nested::q6),
        }
    }
}

/// Decodes arrays of the lengths that the format has, so that the decoders
/// need no bounds.
fn whole<const BYTES: usize, const ELEMENTS: usize>(
    block: &[u8],
    into: &mut [f32],
    decode: fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    if let (Ok(block), Ok(into)) = (block.try_into(), TryInto::<&mut [f32; ELEMENTS]>::try_into(&mut *into)) {
        return decode(block, into);
    }
    let (mut filled, mut values) = ([0; BYTES], [0.0; ELEMENTS]);
    filled.iter_mut().zip(block).for_each(|(to, from)| *to = *from);
    decode(&filled, &mut values);
    into.iter_mut().zip(values).for_each(|(to, from)| *to = from);
}

/// The two bytes at `at` as a half-precision number.
fn half_at<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        })
    }
}

#[cfg(test)]
mod tests;
