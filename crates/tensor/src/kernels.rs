//! What runs on the CPU. Kernels take slices and geometry, never the tape.

pub(crate) mod adamw;
pub(crate) mod attention;
pub(crate) mod changing;
pub(crate) mod choice;
pub(crate) mod copy;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod index;
pub(crate) mod lanes;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod order;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod sgd;
pub(crate) mod strides;

use bytemuck::Pod;
use pulp::Simd;
use weightloom_layout::{DType, Shape};

use crate::element::Element;
use crate::error::TensorError;
use crate::memory::Block;
use crate::parallel::{Kernel, fill};
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::view::View;

/// A new contiguous tensor whose elements `fill` writes, every one of them.
pub(crate) fn make<T: Element>(
    shape: &Shape,
    fill: impl FnOnce(&mut [T]) -> Result<(), TensorError>,
) -> Result<Tensor, TensorError> {
    make_as(T::DTYPE, shape, fill)
}

/// The same, of another dtype whose elements are held in `U`.
pub(crate) fn make_as<U: Pod>(
    dtype: DType,
    shape: &Shape,
    fill: impl FnOnce(&mut [U]) -> Result<(), TensorError>,
) -> Result<Tensor, TensorError> {
    debug_assert_eq!(size_of::<U>(), dtype.size());
    let mut block = Block::new(shape.volume() * size_of::<U>())?;
    fill(bytemuck::cast_slice_mut(block.bytes_mut()))?;
    Ok(Tensor::new(Storage::cpu(block), View::contiguous(shape.clone()), dtype))
}

/// A tensor with changed elements: in its own memory if nobody else uses that.
/// The result is off the tape.
pub(crate) fn rewrite<T: Element>(
    x: Tensor,
    op: &'static str,
    change: impl FnOnce(&mut [T]) -> Result<(), TensorError>,
) -> Result<Tensor, TensorError> {
    rewrite_bits(x, op, change)
}

/// A tensor changed piece by piece: in its own memory if nobody else uses that,
/// else piece by piece into new memory.
pub(crate) fn rewrite_pieces<T: Element>(
    mut x: Tensor,
    op: &'static str,
    unit: usize,
    kernel: &impl Kernel<T>,
) -> Result<Tensor, TensorError> {
    if x.is_held_alone() {
        fill(x.elements_mut::<T>(op)?, unit, kernel);
        return Ok(x.detach());
    }
    let source = x.elements::<T>(op)?;
    make::<T>(x.shape(), |out| {
        fill(out, unit, &Copied { source, kernel });
        Ok(())
    })
}

/// A kernel that changes what is there, given a copy of it.
struct Copied<'a, T, K> {
    source: &'a [T],
    kernel: &'a K,
}

impl<T: Element, K: Kernel<T>> Kernel<T> for Copied<'_, T, K> {
    #[inline(always)]
    fn run<S: Simd>(&self, width: S, start: usize, piece: &mut [T]) {
        piece.copy_from_slice(&self.source[start..start + piece.len()]);
        self.kernel.run(width, start, piece);
    }
}

/// The same, of another dtype whose elements are held in `U`.
pub(crate) fn rewrite_bits<U: Pod>(
    mut x: Tensor,
    op: &'static str,
    change: impl FnOnce(&mut [U]) -> Result<(), TensorError>,
) -> Result<Tensor, TensorError> {
    change(x.bits_mut(op)?)?;
    Ok(x.detach())
}

/// Runs an expression with `$U` as an integer type as wide as a dtype, for work
/// that moves elements and does not look at them.
macro_rules! with_bits {
    ($dtype:expr, $U:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $U = u8;
                $body
            }
            2 => {
                type $U = u16;
                $body
            }
            4 => {
                type $U = u32;
                $body
            }
            _ => {
                type $U = u64;
                $body
            }
        }
    };
}

pub(crate) use with_bits;
