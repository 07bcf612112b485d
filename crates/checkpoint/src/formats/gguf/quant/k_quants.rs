//! Blocks of 256 elements: groups of 16 or 32 with integer scales, which a
//! half-precision scale of the block multiplies.
//!
//! Bits of elements are spread so that 32 (or 64) neighbours come from
//! neighbouring bytes at the same shift: loops over them vectorise.

use super::half_at;

const COUNT: usize = 256;

/// 16 bytes of scale and offset, 64 bytes of two-bit elements, the scales of
/// scales and of offsets.
pub(super) fn q2(block: &[u8; 84], into: &mut [f32; COUNT]) {
    let (scale, offset) = (half_at(block, 80), half_at(block, 82));
    for (group, values) in into.chunks_exact_mut(16).enumerate() {
        let pair = block[group];
        let (scale, offset) = (scale * f32::from(pair & 15), offset * f32::from(pair >> 4));
        let at = TwoBitGroup::new(group);
        for (value, &byte) in values.iter_mut().zip(&block[16 + at.byte..]) {
            *value = scale * f32::from(byte >> at.shift & 3) - offset;
        }
    }
}

/// 32 bytes of third bits, 64 bytes of the lower two, 16 scales of six bits,
/// the scale of scales. An element whose third bit is not set is 4 less.
pub(super) fn q3(block: &[u8; 110], into: &mut [f32; COUNT]) {
    let scale = half_at(block, 108);
    for (group, values) in into.chunks_exact_mut(16).enumerate() {
        let low = block[96 + group % 8] >> (group / 8 * 4) & 15;
        let high = block[104 + group % 4] >> (group / 4 * 2) & 3;
        let scale = scale * (f32::from(low | high << 4) - 32.0);
        let at = TwoBitGroup::new(group);
        let third = &block[group % 2 * 16..];
        for ((value, &byte), &third) in values.iter_mut().zip(&block[32 + at.byte..]).zip(third) {
            let bits = byte >> at.shift & 3 | (third >> (group / 2) & 1) << 2;
            *value = scale * (f32::from(bits) - 4.0);
        }
    }
}

/// Scales of scales and of offsets, 8 scales and offsets of six bits, 128
/// bytes of two elements each.
pub(super) fn q4(block: &[u8; 144], into: &mut [f32; COUNT]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    for (group, values) in into.chunks_exact_mut(32).enumerate() {
        let (scale_bits, offset_bits) = six_bits(&block[4..], group);
        let (scale, offset) = (scale * scale_bits, offset * offset_bits);
        let shift = group % 2 * 4;
        for (value, &byte) in values.iter_mut().zip(&block[16 + group / 2 * 32..]) {
            *value = scale * f32::from(byte >> shift & 15) - offset;
        }
    }
}

/// As [`q4`], with 32 bytes of fifth bits before the elements.
pub(super) fn q5(block: &[u8; 176], into: &mut [f32; COUNT]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    for (group, values) in into.chunks_exact_mut(32).enumerate() {
        let (scale_bits, offset_bits) = six_bits(&block[4..], group);
        let (scale, offset) = (scale * scale_bits, offset * offset_bits);
        let shift = group % 2 * 4;
        let low = &block[48 + group / 2 * 32..];
        for ((value, &low), &fifth) in values.iter_mut().zip(low).zip(&block[16..]) {
            let bits = low >> shift & 15 | (fifth >> group & 1) << 4;
            *value = scale * f32::from(bits) - offset;
        }
    }
}

/// 128 bytes of the lower four bits, 64 bytes of the upper two, 16 signed
/// scales, the scale of scales; 32 means zero.
pub(super) fn q6(block: &[u8; 210], into: &mut [f32; COUNT]) {
    let scale = half_at(block, 208);
    for (group, values) in into.chunks_exact_mut(16).enumerate() {
        let scale = scale * f32::from(block[192 + group].cast_signed());
        // Of 128 elements, the low halves of 64 bytes are the first 64.
        let (half, within) = (group / 8, group % 8);
        let low = &block[half * 64 + within % 4 * 16..];
        let high = &block[128 + half * 32 + within % 2 * 16..];
        let (low_shift, high_shift) = (within / 4 * 4, within / 2 * 2);
        for ((value, &low), &high) in values.iter_mut().zip(low).zip(high) {
            let bits = low >> low_shift & 15 | (high >> high_shift & 3) << 4;
            *value = scale * (f32::from(bits) - 32.0);
        }
    }
}

/// Where a group of 16 two-bit elements is: 128 elements share 32 bytes, and
/// 32 neighbours have the same shift.
struct TwoBitGroup {
    byte: usize,
    shift: usize,
}

impl TwoBitGroup {
    fn new(group: usize) -> Self {
        Self { byte: group / 8 * 32 + group % 2 * 16, shift: group % 8 / 2 * 2 }
    }
}

/// Scale and offset of a group among 12 bytes: the first four groups have six
/// bits in one byte; of the others the upper two bits lie in what those leave
/// free.
fn six_bits(packed: &[u8], group: usize) -> (f32, f32) {
    let at = group % 4;
    let (scale, offset, rest) = (packed[at], packed[4 + at], packed[8 + at]);
    let (scale, offset) = if group < 4 {
        (scale & 63, offset & 63)
    } else {
        (rest & 15 | scale >> 2 & 48, rest >> 4 | offset >> 2 & 48)
    };
    (f32::from(scale), f32::from(offset))
}
