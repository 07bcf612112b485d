//! Blocks of 32 elements with one scale, and for `_1` one offset.
//!
//! Where elements have four bits in a byte, the low halves are the first 16
//! elements and the high halves the last 16.

use super::half_at;

const COUNT: usize = 32;

/// Scale, 16 bytes of two elements each; 8 means zero.
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

/// Scale, the fifth bits, 16 bytes of two elements each; 16 means zero.
pub(super) fn q5_0(block: &[u8; 22], into: &mut [f32; COUNT]) {
    let scale = half_at(block, 0);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (value, bits) in into.iter_mut().zip(five_bits(fifth, &block[6..])) {
        *value = scale * (bits as f32 - 16.0);
    }
}

/// Scale, offset, the fifth bits, 16 bytes of two elements each.
pub(super) fn q5_1(block: &[u8; 24], into: &mut [f32; COUNT]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (value, bits) in into.iter_mut().zip(five_bits(fifth, &block[8..])) {
        *value = scale * bits as f32 + offset;
    }
}

fn five_bits(fifth: u32, packed: &[u8]) -> [i32; COUNT] {
    // A comparison vectorises where shifts by different counts do not.
    let mut elements = FIFTH.map(|bit| if fifth & bit == 0 { 0 } else { 16 });
    let (low, high) = elements.split_at_mut(COUNT / 2);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(packed) {
        *low |= i32::from(byte & 15);
        *high |= i32::from(byte >> 4);
    }
    elements
}

/// Where the fifth bit of an element is.
const FIFTH: [u32; COUNT] = {
    let mut bits = [1; COUNT];
    let mut at = 1;
    while at < COUNT {
        bits[at] = bits[at - 1] << 1;
        at += 1;
    }
    bits
};

/// Scale, 32 signed bytes.
pub(super) fn q8_0(block: &[u8; 34], into: &mut [f32; COUNT]) {
    let scale = half_at(block, 0);
    for (value, &byte) in into.iter_mut().zip(&block[2..]) {
        *value = scale * f32::from(byte.cast_signed());
    }
}
