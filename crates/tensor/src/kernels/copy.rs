//! Moving elements without changing them, and changing their dtype.

use half::{bf16, f16};
use num_traits::AsPrimitive;
use shardloom_layout::{DType, Shape};

use super::make;
use super::strides::Walk;
use crate::element::Element;
use crate::error::TensorError;
use crate::parallel::pieces;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::view::View;

/// The elements of a strided tensor without gaps.
pub(crate) fn packed(x: &Tensor, op: &'static str) -> Result<Tensor, TensorError> {
    match x.dtype() {
        DType::F64 => pack::<f64>(x, op),
        DType::F32 => pack::<f32>(x, op),
        DType::Bf16 => pack::<bf16>(x, op),
        DType::F16 => pack::<f16>(x, op),
        DType::I64 => pack::<i64>(x, op),
        DType::I32 => pack::<i32>(x, op),
        DType::I16 => pack::<i16>(x, op),
        DType::I8 => pack::<i8>(x, op),
        DType::U64 => pack::<u64>(x, op),
        DType::U32 => pack::<u32>(x, op),
        DType::U16 => pack::<u16>(x, op),
        DType::U8 => pack::<u8>(x, op),
        dtype @ (DType::Bool | DType::F8E4M3 | DType::F8E5M2) => Err(TensorError::DType { op, dtype }),
    }
}

fn pack<T: Element>(x: &Tensor, op: &'static str) -> Result<Tensor, TensorError> {
    let view = x.view();
    let source: &[T] = x.storage_elements(op)?;
    let walk = Walk::new(&view.shape, [&view.strides]);
    make::<T>(&view.shape, |out| {
        let (row, [stride]) = (walk.row(), walk.row_strides());
        pieces(out, row, |start, piece| {
            let first = start / row;
            let mut rows = piece.chunks_exact_mut(row);
            walk.rows(first..first + rows.len(), |[offset]| {
                let Some(out) = rows.next() else { return };
                let from = &source[view.offset + offset..];
                if stride == 1 {
                    out.copy_from_slice(&from[..row]);
                } else {
                    out.iter_mut().enumerate().for_each(|(i, out)| *out = from[i * stride]);
                }
            });
        });
        Ok(())
    })
}

/// Zeros with `x` placed at `start` along a dim of the larger shape.
pub(crate) fn placed(x: &Tensor, shape: &Shape, dim: usize, start: usize) -> Result<Tensor, TensorError> {
    let x = x.packed("narrow")?;
    let width = x.dtype().size();
    let inner: usize = shape[dim + 1..].iter().product::<usize>() * width;
    let outer: usize = shape[..dim].iter().product();
    let (length, size) = (x.shape()[dim] * inner, shape[dim] * inner);
    let mut block = crate::memory::Block::new(shape.volume() * width)?;
    block.bytes_mut().fill(0);
    let source = x.bytes("narrow")?;
    if length > 0 {
        for row in 0..outer {
            let to = row * size + start * inner;
            block.bytes_mut()[to..to + length].copy_from_slice(&source[row * length..(row + 1) * length]);
        }
    }
    Ok(Tensor::new(Storage::cpu(block), View::contiguous(shape.clone()), x.dtype()))
}

/// The same values in another dtype.
pub(crate) fn cast(x: &Tensor, to: DType) -> Result<Tensor, TensorError> {
    macro_rules! from {
        ($($dtype:ident => $S:ty, $read:expr;)*) => {
            match x.dtype() {
                $(DType::$dtype => cast_from::<$S, _>(x, to, $read),)*
                dtype => Err(TensorError::DType { op: "cast", dtype }),
            }
        };
    }
    from! {
        F64 => f64, |x: f64| x;
        F32 => f32, |x: f32| x;
        Bf16 => bf16, bf16::to_f32;
        F16 => f16, f16::to_f32;
        I64 => i64, |x: i64| x;
        I32 => i32, |x: i32| x;
        I16 => i16, |x: i16| x;
        I8 => i8, |x: i8| x;
        U64 => u64, |x: u64| x;
        U32 => u32, |x: u32| x;
        U16 => u16, |x: u16| x;
        U8 => u8, |x: u8| x;
    }
}

fn cast_from<S, P>(x: &Tensor, to: DType, read: impl Fn(S) -> P + Sync) -> Result<Tensor, TensorError>
where
    S: Element,
    P: AsPrimitive<f64>
        + AsPrimitive<f32>
        + AsPrimitive<i64>
        + AsPrimitive<i32>
        + AsPrimitive<i16>
        + AsPrimitive<i8>
        + AsPrimitive<u64>
        + AsPrimitive<u32>
        + AsPrimitive<u16>
        + AsPrimitive<u8>,
{
    let source = x.elements::<S>("cast")?;
    macro_rules! to {
        ($($dtype:ident => $D:ty, $via:ty, $write:expr;)*) => {
            match to {
                $(DType::$dtype => make::<$D>(x.shape(), |out| {
                    pieces(out, 1, |start, piece| {
                        for (out, &value) in piece.iter_mut().zip(&source[start..]) {
                            let primitive: $via = read(value).as_();
                            *out = $write(primitive);
                        }
                    });
                    Ok(())
                }),)*
                dtype => Err(TensorError::DType { op: "cast", dtype }),
            }
        };
    }
    to! {
        F64 => f64, f64, |x| x;
        F32 => f32, f32, |x| x;
        Bf16 => bf16, f32, bf16::from_f32;
        F16 => f16, f32, f16::from_f32;
        I64 => i64, i64, |x| x;
        I32 => i32, i32, |x| x;
        I16 => i16, i16, |x| x;
        I8 => i8, i8, |x| x;
        U64 => u64, u64, |x| x;
        U32 => u32, u32, |x| x;
        U16 => u16, u16, |x| x;
        U8 => u8, u8, |x| x;
    }
}
