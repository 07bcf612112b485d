//! Decoding of elements that are packed into words, with scales and biases
//! apart, as MLX quantises.
//!
//! A row is one stream of bits, lowest first, whatever the width: elements of
//! 3, 5 or 6 bits straddle bytes and words. 32 elements always fill whole
//! words, so that is the step. MLX computes in the dtype of the scales: the
//! product is rounded, then the sum. So do we, to have its bits.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use shardloom_layout::DType;

/// Elements that are decoded at once.
const STEP: usize = 32;

/// Packed elements that follow one another in one row.
#[derive(Clone, Copy, Debug)]
pub struct AffineRun<'a> {
    /// Bits of one element: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Elements that share a scale and a bias.
    pub group: usize,
    /// Elements of the row that come before the run.
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
        let step = match self.bits {
            2 => unpack::<2>,
            3 => unpack::<3>,
            4 => unpack::<4>,
            5 => unpack::<5>,
            6 => unpack::<6>,
            _ => unpack::<8>,
        };
        let bits = if matches!(self.bits, 2..=6) { self.bits } else { 8 };
        let group = self.group.max(1);
        let first_byte = self.lead * bits / 32 * 4;
        let first_group = self.lead / group;
        let end = self.lead + into.len();
        let mut at = self.lead;
        while at < end {
            // A step may begin before the run, in words that are not given.
            let start = at / STEP * STEP;
            let stop = (start + STEP).min(end);
            let mut packed = [0; STEP];
            let byte = start / 8 * bits;
            let (skip, from) = (first_byte.saturating_sub(byte), byte.saturating_sub(first_byte));
            let given = self.words.get(from..).unwrap_or_default();
            packed[skip..bits * 4].iter_mut().zip(given).for_each(|(to, from)| *to = *from);
            let numbers = step(&packed);
            // Groups may end inside of a step where they are not as MLX has
            // them; each piece has one scale.
            while at < stop {
                let next = ((at / group + 1) * group).min(stop);
                let side = at / group - first_group;
                let scale = number(self.dtype, self.scales, side);
                let bias = number(self.dtype, self.biases, side);
                let values = &mut into[at - self.lead..next - self.lead];
                values.copy_from_slice(&numbers[at - start..next - start]);
                scale_and_shift(self.dtype, scale, bias, values);
                at = next;
            }
        }
    }
}

/// The numbers that `BITS` words hold.
fn unpack<const BITS: usize>(packed: &[u8; STEP]) -> [f32; STEP] {
    let mut numbers = [0.0; STEP];
    for (eight, bytes) in numbers.chunks_exact_mut(8).zip(packed.chunks_exact(BITS)) {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        for (at, number) in eight.iter_mut().enumerate() {
            *number = (word >> (at * BITS) & ((1 << BITS) - 1)) as u8 as f32;
        }
    }
    numbers
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
fn scale_and_shift(dtype: DType, scale: f32, bias: f32, values: &mut [f32]) {
    match dtype {
        DType::F16 => {
            let mut rounded = [f16::ZERO; STEP];
            let rounded = &mut rounded[..values.len()];
            values.iter_mut().for_each(|value| *value *= scale);
            rounded.convert_from_f32_slice(values);
            rounded.convert_to_f32_slice(values);
            values.iter_mut().for_each(|value| *value += bias);
            rounded.convert_from_f32_slice(values);
            rounded.convert_to_f32_slice(values);
        }
        DType::Bf16 => {
            let round = |value: f32| bf16::from_f32(value).to_f32();
            values.iter_mut().for_each(|value| *value = round(round(*value * scale) + bias));
        }
        _ => values.iter_mut().for_each(|value| *value = *value * scale + bias),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXTURE: &[u8] = include_bytes!("../tests/fixtures/affine/affine.safetensors");

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
