//! Host memory that others fill before it becomes a tensor.
//!
//! A loader makes the memory of all parameters, reads a checkpoint into all of
//! it side by side, and then makes tensors of it. No pass over the memory
//! happens on either side of the reading.

use std::fmt;

use weightloom_layout::{DType, Shape};

use crate::error::TensorError;
use crate::memory::Block;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::view::View;

/// Memory for one tensor, held alone until it becomes that tensor.
pub struct HostMemory {
    block: Block,
    dtype: DType,
    shape: Shape,
}

impl HostMemory {
    /// Memory for a tensor, from the caching allocator. Its bytes are whatever
    /// was there before.
    pub fn new(dtype: DType, shape: &Shape) -> Result<Self, TensorError> {
        let block = Block::new(shape.volume() * dtype.size())?;
        Ok(Self { block, dtype, shape: shape.clone() })
    }

    /// The dtype of the tensor to be.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The bytes of its elements in row-major order.
    pub fn bytes(&self) -> &[u8] {
        self.block.bytes()
    }

    /// The same, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.bytes_mut()
    }

    /// The tensor that has these bytes.
    pub fn into_tensor(self) -> Tensor {
        Tensor::new(Storage::cpu(self.block), View::contiguous(self.shape), self.dtype)
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} {})", self.shape, self.dtype)
    }
}
