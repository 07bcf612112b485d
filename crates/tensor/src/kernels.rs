//! Kernels, one file per family of operations.
//!
//! A file declares the kernels that every device must have, as a trait, and
//! implements them for the CPU and for the meta device, whose kernels return
//! shapes and count flops and bytes. Kernels never see the tape.

pub(crate) mod attention;
pub(crate) mod comparison;
pub(crate) mod copy;
pub(crate) mod copy_on_write;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod index;
pub(crate) mod lanes;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod strides;

use bytemuck::Pod;
use pulp::Simd;
use weightloom_layout::{DType, Shape};

use crate::element::Element;
use crate::error::Result;
use crate::memory::Block;
use crate::parallel::{Kernel, fill};
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::view::View;

/// A new contiguous tensor. `fill` must write every element.
pub(crate) fn make<T: Element>(shape: &Shape, fill: impl FnOnce(&mut [T]) -> Result<()>) -> Result<Tensor> {
    make_as(T::DTYPE, shape, fill)
}

/// The same for a dtype whose elements have the size of `U`.
pub(crate) fn make_as<U: Pod>(
    dtype: DType,
    shape: &Shape,
    fill: impl FnOnce(&mut [U]) -> Result<()>,
) -> Result<Tensor> {
    debug_assert_eq!(size_of::<U>(), dtype.size());
    let mut block = Block::new(shape.volume() * size_of::<U>())?;
    fill(bytemuck::cast_slice_mut(block.bytes_mut()))?;
    Ok(Tensor::new(Storage::cpu(block), View::contiguous(shape.clone()), dtype))
}

/// Changes the elements of a tensor, in its memory unless that is shared. The
/// result is off the tape.
pub(crate) fn rewrite<T: Element>(
    x: Tensor,
    op: &'static str,
    change: impl FnOnce(&mut [T]) -> Result<()>,
) -> Result<Tensor> {
    rewrite_bits(x, op, change)
}

/// Changes a tensor piece by piece, in its memory, or into new memory if that is
/// shared.
pub(crate) fn rewrite_pieces<T: Element>(
    mut x: Tensor,
    op: &'static str,
    unit: usize,
    kernel: &impl Kernel<T>,
) -> Result<Tensor> {
    if x.is_unique_and_contiguous() {
        fill(x.elements_mut::<T>(op)?, unit, kernel);
        return Ok(x.detach());
    }
    let source = x.elements::<T>(op)?;
    make::<T>(x.shape(), |out| {
        fill(out, unit, &Copied { source, kernel });
        Ok(())
    })
}

/// A kernel that copies a piece before it changes it.
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

/// As [`rewrite`], for a dtype whose elements have the size of `U`.
pub(crate) fn rewrite_bits<U: Pod>(
    mut x: Tensor,
    op: &'static str,
    change: impl FnOnce(&mut [U]) -> Result<()>,
) -> Result<Tensor> {
    change(x.bits_mut(op)?)?;
    Ok(x.detach())
}

/// Runs an expression with `$U` as an integer type of the size of a dtype, for
/// kernels that only move elements.
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
