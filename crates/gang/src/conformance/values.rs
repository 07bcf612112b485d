//! Values that ranks contribute, and the expected reductions of them.

use half::{bf16, f16};
use weightloom_layout::{DType, ReduceOp};

use crate::element::{Elements, ElementsMut};

/// Aligned memory for elements of any dtype.
pub(crate) struct Values {
    dtype: DType,
    words: Vec<u64>,
    length: usize,
}

impl Values {
    pub(super) fn zeroed(dtype: DType, count: usize) -> Self {
        let length = count * dtype.size();
        Self { dtype, words: vec![0; length.div_ceil(8)], length }
    }

    pub(super) fn of(dtype: DType, values: impl ExactSizeIterator<Item = impl Into<Number>>) -> Self {
        let mut all = Self::zeroed(dtype, values.len());
        let width = dtype.size();
        for (index, value) in values.enumerate() {
            let bytes = &mut all.bytes_mut()[index * width..(index + 1) * width];
            encode(dtype, value.into(), bytes);
        }
        all
    }

    pub(crate) fn elements(&self) -> Elements<'_> {
        Elements::from_bytes(self.dtype, self.bytes()).expect("words are aligned for every dtype")
    }

    pub(crate) fn elements_mut(&mut self) -> ElementsMut<'_> {
        let dtype = self.dtype;
        ElementsMut::from_bytes(dtype, self.bytes_mut()).expect("words are aligned for every dtype")
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

/// A value before its conversion to an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Float(f64),
    /// Wraps to the size of the element.
    Integer(i64),
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

/// The `index`-th element that a rank contributes: a small integer, exact in
/// every dtype.
pub(super) fn contribution(dtype: DType, rank: usize, index: usize) -> f64 {
    // Scrambled, so that no shift of the elements looks like the original.
    let mixed = ((rank * 31 + index + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match dtype {
        DType::Bool => (mixed % 2) as f64,
        DType::F8E4M3 | DType::F8E5M2 => (mixed % 251) as f64,
        _ => (mixed % 3 + 1) as f64,
    }
}

/// The reduction of the `index`-th elements of all ranks, in rank order and in
/// the arithmetic of the dtype.
pub(super) fn reduced(dtype: DType, op: ReduceOp, ranks: usize, index: usize) -> Number {
    let values = (0..ranks).map(|rank| contribution(dtype, rank, index));
    match dtype {
        DType::F64 => Number::Float(match op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Avg => values.sum::<f64>() / ranks as f64,
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            ReduceOp::Prod => values.product(),
        }),
        _ if dtype.is_float() => {
            let values = values.map(|value| value as f32);
            Number::Float(f64::from(match op {
                ReduceOp::Sum => values.sum(),
                ReduceOp::Avg => values.sum::<f32>() / ranks as f32,
                ReduceOp::Max => values.fold(f32::NEG_INFINITY, f32::max),
                ReduceOp::Min => values.fold(f32::INFINITY, f32::min),
                ReduceOp::Prod => values.product(),
            }))
        }
        _ => {
            let values = values.map(|value| value as i64);
            Number::Integer(match op {
                ReduceOp::Sum | ReduceOp::Avg => values.sum(),
                ReduceOp::Max => values.max().unwrap_or(0),
                ReduceOp::Min => values.min().unwrap_or(0),
                ReduceOp::Prod => values.fold(1, i64::wrapping_mul),
            })
        }
    }
}

fn encode(dtype: DType, value: Number, bytes: &mut [u8]) {
    let (float, integer) = match value {
        Number::Float(float) => (float, float as i64),
        Number::Integer(integer) => (integer as f64, integer),
    };
    match dtype {
        DType::F64 => bytes.copy_from_slice(&float.to_ne_bytes()),
        DType::F32 => bytes.copy_from_slice(&(float as f32).to_ne_bytes()),
        DType::Bf16 => bytes.copy_from_slice(&bf16::from_f32(float as f32).to_ne_bytes()),
        DType::F16 => bytes.copy_from_slice(&f16::from_f32(float as f32).to_ne_bytes()),
        DType::I64 | DType::U64 => bytes.copy_from_slice(&integer.to_ne_bytes()),
        DType::I32 | DType::U32 => bytes.copy_from_slice(&(integer as i32).to_ne_bytes()),
        DType::I16 | DType::U16 => bytes.copy_from_slice(&(integer as i16).to_ne_bytes()),
        // Eight-bit floats are copied and never reduced: any byte will do.
        DType::I8 | DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => bytes[0] = integer as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_values_and_reductions_differ() {
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
            let line: Vec<Number> = (0..30).map(|i| reduced(DType::F32, op, 2, i)).collect();
            assert!(line.windows(2).any(|pair| pair[0] != pair[1]), "{op}");
        }
    }
}
