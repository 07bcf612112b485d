//! Values that the suite sends, and the reductions it expects of them.

use half::{bf16, f16};
use shardloom_layout::{DType, ReduceOp};

/// Aligned memory for elements of any dtype.
pub(super) struct Values {
    words: Vec<u64>,
    length: usize,
}

impl Values {
    pub(super) fn zeroed(dtype: DType, count: usize) -> Self {
        let length = count * dtype.size();
        Self { words: vec![0; length.div_ceil(8)], length }
    }

    pub(super) fn of(dtype: DType, values: impl ExactSizeIterator<Item = f64>) -> Self {
        let mut all = Self::zeroed(dtype, values.len());
        let width = dtype.size();
        for (place, value) in values.enumerate() {
            let bytes = &mut all.bytes_mut()[place * width..(place + 1) * width];
            encode(dtype, value, bytes);
        }
        all
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

/// What a rank contributes as its `index`-th element: small whole numbers,
/// exact in every dtype and under every reduction.
pub(super) fn contribution(dtype: DType, rank: usize, index: usize) -> f64 {
    // Scrambled, so that no shift of the elements looks like the original.
    let mixed = ((rank * 31 + index + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match dtype {
        DType::Bool => (mixed % 2) as f64,
        DType::F8E4M3 | DType::F8E5M2 => (mixed % 251) as f64,
        _ => (mixed % 3 + 1) as f64,
    }
}

/// The reduction of what all ranks contribute as their `index`-th element.
pub(super) fn combined(dtype: DType, op: ReduceOp, ranks: usize, index: usize) -> f64 {
    let values = (0..ranks).map(|rank| contribution(dtype, rank, index));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Avg => {
            // The one inexact reduction: divide as the accumulator does.
            let sum: f64 = values.sum();
            if dtype == DType::F64 { sum / ranks as f64 } else { f64::from(sum as f32 / ranks as f32) }
        }
        ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
        ReduceOp::Prod => values.product(),
    }
}

fn encode(dtype: DType, value: f64, bytes: &mut [u8]) {
    match dtype {
        DType::F64 => bytes.copy_from_slice(&value.to_ne_bytes()),
        DType::F32 => bytes.copy_from_slice(&(value as f32).to_ne_bytes()),
        DType::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value as f32).to_ne_bytes()),
        DType::F16 => bytes.copy_from_slice(&f16::from_f32(value as f32).to_ne_bytes()),
        DType::I64 | DType::U64 => bytes.copy_from_slice(&(value as i64).to_ne_bytes()),
        DType::I32 | DType::U32 => bytes.copy_from_slice(&(value as i32).to_ne_bytes()),
        DType::I16 | DType::U16 => bytes.copy_from_slice(&(value as i16).to_ne_bytes()),
        // Eight-bit floats are only moved, never computed with: any byte will
        // do.
        DType::I8 | DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => bytes[0] = value as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_and_reductions_differ() {
        for dtype in DType::ALL {
            let line: Vec<f64> = (0..30).map(|i| contribution(dtype, 0, i)).collect();
            for shift in 1..5 {
                assert!(
                    line.windows(shift + 1).any(|pair| pair[0] != pair[shift]),
                    "{dtype} shifted by {shift}"
                );
            }
        }
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod] {
            let line: Vec<f64> = (0..30).map(|i| combined(DType::F32, op, 2, i)).collect();
            assert!(line.windows(2).any(|pair| pair[0] != pair[1]), "{op}");
        }
    }
}
