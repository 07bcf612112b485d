//! What runs on the CPU. Kernels take slices and geometry, never the tape.

pub(crate) mod attention;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod lanes;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod strides;

use shardloom_layout::Shape;

use crate::element::Element;
use crate::error::TensorError;
use crate::memory::Block;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::view::View;

/// A new contiguous tensor whose elements `fill` writes, every one of them.
pub(crate) fn make<T: Element>(
    shape: &Shape,
    fill: impl FnOnce(&mut [T]) -> Result<(), TensorError>,
) -> Result<Tensor, TensorError> {
    let mut block = Block::new(shape.volume() * size_of::<T>())?;
    fill(bytemuck::cast_slice_mut(block.bytes_mut()))?;
    Ok(Tensor::new(Storage::cpu(block), View::contiguous(shape.clone()), T::DTYPE))
}
