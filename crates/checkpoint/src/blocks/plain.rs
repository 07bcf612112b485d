//! Blocks of 32 elements with one scale, and for `_1` one offset.
//!
//! Where elements have four bits in a byte, the low halves are the first 16
//! elements and the high halves the last 16.

use super::half_at;

const COUNT: usize = 32;

/// Scale, 16 bytes of two elements each; 8 stands for zero.
pub(super) fn q4_0(block: &[u8; 18], into: &mut [f32; COUNT]) {
    let scale = half_at(block, 0);
    let (low, high) = into.split_at_mut(COUNT / 2);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = scale * (f32::from(byte & 15) - 8.0);
        *high = scale * (f32::from(byte >> 4) - 8.0);
    }
}

/// Scale, offset, 16 bytes of two elements each.
pub(super) fn q4_1(block: &[u8; 20], into: &mut [f32; COUNT]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let (low, high) = into.split_at_mut(COUNT / 2);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[4..]) {
        *low = scale * f32::from(byte & 15) + offset;
        *high = scale * f32::from(byte >> 4) + offset;
    }
}

/// Scale, the fifth bits, 16 bytes of two elements each; 16 stands for zero.
pub(super) fn q5_0(block: &[u8; 22], into: &mut [f32; COUNT]) {
    let scale = half_at(block, 0);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    let (low, high) = into.split_at_mut(COUNT / 2);
    for (at, ((low, high), &byte)) in low.iter_mut().zip(high).zip(&block[6..]).enumerate() {
        *low = scale * (five_bits(byte & 15, fifth, at) - 16.0);
        *high = scale * (five_bits(byte >> 4, fifth, at + COUNT / 2) - 16.0);
    }
}

/// Scale, offset, the fifth bits, 16 bytes of two elements each.
pub(super) fn q5_1(block: &[u8; 24], into: &mut [f32; COUNT]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    let (low, high) = into.split_at_mut(COUNT / 2);
    for (at, ((low, high), &byte)) in low.iter_mut().zip(high).zip(&block[8..]).enumerate() {
        *low = scale * five_bits(byte & 15, fifth, at) + offset;
        *high = scale * five_bits(byte >> 4, fifth, at + COUNT / 2) + offset;
    }
}

fn five_bits(low: u8, fifth: u32, at: usize) -> f32 {
    (u32::from(low) | (fifth >> at & 1) << 4) as f32
}

/// Scale, 32 signed bytes.
pub(super) fn q8_0(block: &[u8; 34], into: &mut [f32; COUNT]) {
    let scale = half_at(block, 0);
    for (value, &byte) in into.iter_mut().zip(&block[2..]) {
        *value = scale * f32::from(byte.cast_signed());
    }
}
