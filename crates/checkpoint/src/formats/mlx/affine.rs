//! Decoding of elements that are packed into words, with scales and biases
//! apart, as MLX quantises.
//!
//! A row is one stream of bits, lowest first, whatever the width: elements of
//! 3, 5 or 6 bits straddle bytes and words. 32 elements always fill whole
//! words, so that is the step. MLX computes in the dtype of the scales: the
//! product is rounded, then the sum. So do we, to have its bits.

use std::array;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use weightloom_layout::DType;

/// Elements that are decoded at once.
const STEP: usize = 32;

/// Contiguous packed elements of one row.
#[derive(Clone, Copy, Debug)]
pub struct AffineRun<'a> {
    /// Bits of one element: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Elements that share a scale and a bias.
    pub group: usize,
    /// Elements of the row before the run.
    pub lead: usize,
    /// The dtype of scales and biases.
    pub dtype: DType,
    /// The words, from the one on that holds the run's first bit.
    pub words: &'a [u8],
    /// The scales, from that of the run's first element on.
    pub scales: &'a [u8],
    /// The biases, from that of the run's first element on.
    pub biases: &'a [u8],
}

impl AffineRun<'_> {
    /// Decodes as many elements as `into` has. Bytes that are missing count as
    /// zeros.
    ///
    /// The numbers are those of the scales' dtype, widened.
    pub fn decode(&self, into: &mut [f32]) {
        match self.bits {
            2 => self.decode_bits::<2>(into),
            3 => self.decode_bits::<3>(into),
            4 => self.decode_bits::<4>(into),
            5 => self.decode_bits::<5>(into),
            6 => self.decode_bits::<6>(into),
            _ => self.decode_bits::<8>(into),
        }
    }

    fn decode_bits<const BITS: usize>(&self, into: &mut [f32]) {
        let group = self.group.max(1);
        let first_group = self.lead / group;
        let end = self.lead + into.len();
        let mut at = self.lead;
        while at < end {
            let number = |values| number(self.dtype, values, at / group - first_group);
            let (scale, bias) = (number(self.scales), number(self.biases));
            let group_end = ((at / group + 1) * group).min(end);
            while at < group_end {
                let start = at / STEP * STEP;
                let next = (start + STEP).min(group_end);
                let mut values = unpack::<BITS>(self.step::<BITS>(start));
                scale_and_shift(self.dtype, scale, bias, &mut values);
                into[at - self.lead..next - self.lead].copy_from_slice(&values[at - start..next - start]);
                at = next;
            }
        }
    }

    /// The bits of 32 elements, eight elements per word, followed by unrelated
    /// bits. Elements outside the run may be in words that are not given.
    fn step<const BITS: usize>(&self, start: usize) -> [u64; STEP / 8] {
        let (byte, first) = (start / 8 * BITS, self.lead * BITS / 32 * 4);
        let (skip, from) = (first.saturating_sub(byte), byte.saturating_sub(first));
        let given = self.words.get(from..).unwrap_or_default();
        if skip == 0 && given.len() >= STEP + 8 {
            return eights::<BITS>(given);
        }
        let mut filled = [0; STEP + 8];
        filled[skip..].iter_mut().zip(given).for_each(|(to, from)| *to = *from);
        eights::<BITS>(&filled)
    }
}

/// Eight bytes from the first of every eight elements on.
fn eights<const BITS: usize>(packed: &[u8]) -> [u64; STEP / 8] {
    array::from_fn(|eight| {
        let bytes = packed.get(eight * BITS..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |&bytes| u64::from_le_bytes(bytes))
    })
}

/// The numbers of 32 elements.
fn unpack<const BITS: usize>(eights: [u64; STEP / 8]) -> [f32; STEP] {
    let bytes = eights.map(spread::<BITS>);
    array::from_fn(|at| f32::from(bytes[at / 8][at % 8]))
}

/// Spreads eight packed numbers to one byte each: moves halves apart three
/// times, by constant counts.
fn spread<const BITS: usize>(word: u64) -> [u8; 8] {
    let low = |count: usize| (1 << count) - 1;
    let halves = word & low(4 * BITS) | word >> (4 * BITS) << 32;
    let mask = low(2 * BITS) * 0x1_0000_0001;
    let quarters = halves & mask | (halves >> (2 * BITS) & mask) << 16;
    let mask = low(BITS) * 0x1_0001_0001_0001;
    let eighths = quarters & mask | (quarters >> BITS & mask) << 8;
    eighths.to_le_bytes()
}

/// The value at a place among scales or biases.
fn number(dtype: DType, values: &[u8], at: usize) -> f32 {
    let width = if dtype == DType::F32 { 4 } else { 2 };
    let mut bytes = [0; 4];
    let given = values.get(at * width..(at + 1) * width).unwrap_or_default();
    bytes[..given.len()].copy_from_slice(given);
    let [low, high, ..] = bytes;
    match dtype {
        DType::F16 => f16::from_le_bytes([low, high]).to_f32(),
        DType::Bf16 => bf16::from_le_bytes([low, high]).to_f32(),
        _ => f32::from_le_bytes(bytes),
    }
}

/// `value * scale + bias`, with both results rounded to the dtype.
fn scale_and_shift(dtype: DType, scale: f32, bias: f32, values: &mut [f32; STEP]) {
    match dtype {
        DType::F16 => {
            let mut rounded = [f16::ZERO; STEP];
            values.iter_mut().for_each(|value| *value *= scale);
            rounded.convert_from_f32_slice(values);
            rounded.convert_to_f32_slice(values);
            values.iter_mut().for_each(|value| *value += bias);
            rounded.convert_from_f32_slice(values);
            rounded.convert_to_f32_slice(values);
        }
        DType::Bf16 => {
            values.iter_mut().for_each(|value| *value = to_bf16(to_bf16(*value * scale) + bias));
        }
        _ => values.iter_mut().for_each(|value| *value = *value * scale + bias),
    }
}

/// The nearest number with the upper half of the bits, ties to even, without
/// branches, so that loops over it vectorise.
fn to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    // NaN must not round to infinity.
    if value.is_nan() { value } else { f32::from_bits(rounded) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_bf16() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let (found, expected) = (to_bf16(value), bf16::from_f32(value).to_f32());
                assert!(found == expected || found.is_nan() && expected.is_nan(), "{value:e}");
            }
        }
    }

    const FIXTURE: &[u8] = include_bytes!("../../../tests/fixtures/mlx/affine/affine.safetensors");

    fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
        (0..bytes.len() / dtype.size()).map(|at| number(dtype, bytes, at)).collect()
    }

    #[test]
    fn values_have_the_bits_of_mlx_from_any_element_on() {
        let tensors = safetensors::SafeTensors::deserialize(FIXTURE).unwrap();
        let mut cases = 0;
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            for (bits, group) in [2, 3, 4, 5, 6, 8].into_iter().flat_map(|b| [32, 64, 128].map(|g| (b, g))) {
                let tensor = |part: &str| tensors.tensor(&format!("{dtype}.{bits}.{group}.{part}")).unwrap();
                let (words, scales, biases) = (tensor("words"), tensor("scales"), tensor("biases"));
                let expected = floats(dtype, tensor("values").data());
                let width = dtype.size();
                for lead in [0, 1, 7, 31, 32, 33, 70, 120] {
                    let run = AffineRun {
                        bits,
                        group,
                        lead,
                        dtype,
                        words: &words.data()[lead * bits / 32 * 4..],
                        scales: &scales.data()[lead / group * width..],
                        biases: &biases.data()[lead / group * width..],
                    };
                    for count in [0, 1, 5, expected.len() - lead] {
                        let mut found = vec![f32::NAN; count];
                        run.decode(&mut found);
                        assert_eq!(found, expected[lead..lead + count], "{dtype} {bits} {group} {lead}");
                    }
                }
                cases += 1;
            }
        }
        assert_eq!(cases, 54);
    }

    #[test]
    fn missing_bytes_and_odd_numbers_do_not_panic() {
        for (bits, group, lead) in [(4, 64, 10), (7, 0, 3), (0, 5, 0), (3, 48, 100)] {
            let nothing: &[u8] = &[];
            let (words, scales, biases) = (&[255; 3][..], nothing, nothing);
            let run = AffineRun { bits, group, lead, dtype: DType::F16, words, scales, biases };
            let mut values = [1.0; 77];
            run.decode(&mut values);
            assert_eq!(values, [0.0; 77]);
        }
    }
}
