//! Copying and casting.

use bytemuck::Pod;
use half::{bf16, f16};
use num_traits::AsPrimitive;
use weightloom_layout::{DType, F8E4M3, F8E5M2, Shape};

use super::strides::Walk;
use super::{make_as, with_bits};
use crate::backend::meta::{output, output_like, record, volume};
use crate::backend::{Cpu, Meta};
use crate::element::Float as _;
use crate::error::Result;
use crate::parallel::pieces;
use crate::tensor::Tensor;
use crate::view::View;

/// Copying and casting kernels.
pub(crate) trait CopyKernels {
    /// A tensor filled with a value.
    fn fill(&self, value: f64, dtype: DType, shape: &Shape) -> Result<Tensor>;

    /// Copies the elements of any view into contiguous memory.
    fn pack(&self, op: &'static str, x: &Tensor) -> Result<Tensor>;

    /// Casts to another dtype.
    fn cast(&self, x: &Tensor, to: DType) -> Result<Tensor>;

    /// Concatenates tensors of any strides along a dim.
    fn cat(&self, parts: &[Tensor], dim: usize, shape: &Shape) -> Result<Tensor>;

    /// Writes `source`, of any strides, into a window of `into`: a view of its
    /// elements in row-major order, of the source's shape.
    fn assign(&self, into: &mut Tensor, window: &View, source: &Tensor) -> Result<()>;
}

impl CopyKernels for Cpu {
    fn fill(&self, value: f64, dtype: DType, shape: &Shape) -> Result<Tensor> {
        filled(value, dtype, shape)
    }

    fn pack(&self, op: &'static str, x: &Tensor) -> Result<Tensor> {
        packed(x, op)
    }

    fn cast(&self, x: &Tensor, to: DType) -> Result<Tensor> {
        cast(x, to)
    }

    fn cat(&self, parts: &[Tensor], dim: usize, shape: &Shape) -> Result<Tensor> {
        cat(parts, dim, shape)
    }

    fn assign(&self, into: &mut Tensor, window: &View, source: &Tensor) -> Result<()> {
        assign(into, window, source)
    }
}

impl CopyKernels for Meta {
    fn fill(&self, _: f64, dtype: DType, shape: &Shape) -> Result<Tensor> {
        output("fill", 0, &[], shape, dtype)
    }

    fn pack(&self, _: &'static str, x: &Tensor) -> Result<Tensor> {
        output_like("pack", 0, &[x])
    }

    fn cast(&self, x: &Tensor, to: DType) -> Result<Tensor> {
        output("cast", volume(x.shape()), &[x], x.shape(), to)
    }

    fn cat(&self, parts: &[Tensor], _: usize, shape: &Shape) -> Result<Tensor> {
        output("cat", 0, &parts.iter().collect::<Vec<_>>(), shape, parts[0].dtype())
    }

    fn assign(&self, _: &mut Tensor, _: &View, source: &Tensor) -> Result<()> {
        record("assign", 0, &[source], &[source]);
        Ok(())
    }
}

/// Copies a strided tensor into contiguous memory.
pub(crate) fn packed(x: &Tensor, op: &'static str) -> Result<Tensor> {
    with_bits!(x.dtype(), U => pack::<U>(x, op))
}

fn pack<U: Pod + Send + Sync>(x: &Tensor, op: &'static str) -> Result<Tensor> {
    let view = x.view();
    let source: &[U] = x.storage_bits(op)?;
    let walk = Walk::new(&view.shape, [&view.strides]);
    make_as::<U>(x.dtype(), &view.shape, |out| {
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

/// Writes a strided source into a window of a tensor.
pub(crate) fn assign(into: &mut Tensor, window: &View, source: &Tensor) -> Result<()> {
    with_bits!(into.dtype(), U => put::<U>(into, window, source))
}

fn put<U: Pod>(into: &mut Tensor, window: &View, source: &Tensor) -> Result<()> {
    let view = source.view();
    let walk = Walk::new(&window.shape, [&window.strides, &view.strides]);
    let (row, [stride, from_stride]) = (walk.row(), walk.row_strides());
    let from: &[U] = source.storage_bits("assign")?;
    let into: &mut [U] = into.bits_mut("assign")?;
    if window.shape.volume() == 0 {
        return Ok(());
    }
    walk.rows(0..window.shape.volume() / row, |[offset, from_offset]| {
        let (out, from) = (&mut into[window.offset + offset..], &from[view.offset + from_offset..]);
        if stride == 1 && from_stride == 1 {
            out[..row].copy_from_slice(&from[..row]);
        } else {
            (0..row).for_each(|i| out[i * stride] = from[i * from_stride]);
        }
    });
    Ok(())
}

/// Concatenates tensors along a dim.
pub(crate) fn cat(parts: &[Tensor], dim: usize, shape: &Shape) -> Result<Tensor> {
    let parts = parts.iter().map(|part| part.contiguous("cat")).collect::<Result<Vec<_>, _>>()?;
    with_bits!(parts[0].dtype(), U => {
        let inner: usize = shape[dim + 1..].iter().product();
        let sources = parts
            .iter()
            .map(|part| Ok((part.bits::<U>("cat")?, part.shape()[dim] * inner)))
            .collect::<Result<Vec<_>>>()?;
        let row = shape[dim] * inner;
        make_as::<U>(parts[0].dtype(), shape, |out| {
            pieces(out, row, |start, piece| {
                for (number, out) in piece.chunks_exact_mut(row.max(1)).enumerate() {
                    let mut rest = out;
                    for (source, length) in &sources {
                        let (here, after) = rest.split_at_mut(*length);
                        here.copy_from_slice(&source[(start / row.max(1) + number) * length..][..*length]);
                        rest = after;
                    }
                }
            });
            Ok(())
        })
    })
}

/// Casts to another dtype.
pub(crate) fn cast(x: &Tensor, to: DType) -> Result<Tensor> {
    macro_rules! from {
        ($($dtype:ident => $S:ty, $read:expr;)*) => {
            match x.dtype() {
                $(DType::$dtype => cast_from::<$S, _>(x, to, $read),)*
            }
        };
    }
    from! {
        F64 => f64, |x: f64| x;
        F32 => f32, |x: f32| x;
        Bf16 => bf16, bf16::widen;
        F16 => f16, f16::widen;
        F8E4M3 => F8E4M3, F8E4M3::to_f32;
        F8E5M2 => F8E5M2, F8E5M2::to_f32;
        I64 => i64, |x: i64| x;
        I32 => i32, |x: i32| x;
        I16 => i16, |x: i16| x;
        I8 => i8, |x: i8| x;
        U64 => u64, |x: u64| x;
        U32 => u32, |x: u32| x;
        U16 => u16, |x: u16| x;
        U8 => u8, |x: u8| x;
        Bool => u8, |x: u8| x;
    }
}

fn cast_from<S, P>(x: &Tensor, to: DType, read: impl Fn(S) -> P + Sync) -> Result<Tensor>
where
    S: Pod + Send + Sync,
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
    let source = x.bits::<S>("cast")?;
    macro_rules! to {
        ($($dtype:ident => $D:ty, $via:ty, $write:expr;)*) => {
            match to {
                $(DType::$dtype => make_as::<$D>(to, x.shape(), |out| {
                    pieces(out, 1, |start, piece| {
                        for (out, &value) in piece.iter_mut().zip(&source[start..]) {
                            let primitive: $via = read(value).as_();
                            *out = $write(primitive);
                        }
                    });
                    Ok(())
                }),)*
            }
        };
    }
    to! {
        F64 => f64, f64, |x| x;
        F32 => f32, f32, |x| x;
        Bf16 => bf16, f32, bf16::narrow;
        F16 => f16, f32, f16::narrow;
        F8E4M3 => F8E4M3, f32, F8E4M3::from_f32;
        F8E5M2 => F8E5M2, f32, F8E5M2::from_f32;
        I64 => i64, i64, |x| x;
        I32 => i32, i32, |x| x;
        I16 => i16, i16, |x| x;
        I8 => i8, i8, |x| x;
        U64 => u64, u64, |x| x;
        U32 => u32, u32, |x| x;
        U16 => u16, u16, |x| x;
        U8 => u8, u8, |x| x;
        Bool => u8, f64, |x| u8::from(x != 0.0);
    }
}

/// A tensor filled with a value.
pub(crate) fn filled(value: f64, dtype: DType, shape: &Shape) -> Result<Tensor> {
    let one = cast(&Tensor::scalar(value)?, dtype)?;
    with_bits!(dtype, U => {
        let value = one.bits::<U>("fill")?[0];
        make_as::<U>(dtype, shape, |out| {
            pieces(out, 1, |_, piece| piece.fill(value));
            Ok(())
        })
    })
}
