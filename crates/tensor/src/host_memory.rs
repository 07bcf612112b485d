//! Host memory that a loader fills before it becomes a tensor.
//!
//! A loader allocates the memory of all parameters, reads a checkpoint into it in
//! parallel, and turns it into tensors without copying.

use std::fmt;

use weightloom_layout::{DType, Shape};

use crate::error::Result;
use crate::memory::Block;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::view::View;

/// Memory for one tensor, filled before it becomes that tensor.
pub struct HostMemory {
    block: Block,
    dtype: DType,
    shape: Shape,
}

impl HostMemory {
    /// Memory for a tensor, from the caching allocator, not cleared.
    pub fn new(dtype: DType, shape: &Shape) -> Result<Self> {
        let block = Block::new(shape.volume() * dtype.size())?;
        Ok(Self { block, dtype, shape: shape.clone() })
    }

    /// The dtype of the tensor.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape of the tensor.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The bytes of the elements, row-major.
    pub fn bytes(&self) -> &[u8] {
        self.block.bytes()
    }

    /// The bytes of the elements, row-major, to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.bytes_mut()
    }

    /// The tensor with these bytes.
    pub fn into_tensor(self) -> Tensor {
        Tensor::new(Storage::cpu(self.block), View::contiguous(self.shape), self.dtype)
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} {})", self.shape, self.dtype)
    }
}
