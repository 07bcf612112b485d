//! The tensor itself: making it, looking at it, viewing it.

use std::fmt;
use std::sync::Arc;

use shardloom_layout::{DType, Shape};

use crate::device::Device;
use crate::element::Element;
use crate::error::TensorError;
use crate::kernels;
use crate::memory::Block;
use crate::storage::Storage;
use crate::tape::Origin;
use crate::view::View;

/// A strided view of shared memory.
///
/// Cloning shares; nothing is copied until an operation makes a new tensor.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    storage: Storage,
    view: View,
    dtype: DType,
    origin: Origin,
}

impl Tensor {
    /// A tensor of these elements, row-major.
    pub fn from_slice<T: Element>(elements: &[T], dims: &[usize]) -> Result<Self, TensorError> {
        let shape = Shape::new(dims)?;
        if shape.volume() != elements.len() {
            return Err(TensorError::ElementCount { shape, found: elements.len() });
        }
        let mut block = Block::new(size_of_val(elements))?;
        block.bytes_mut().copy_from_slice(bytemuck::cast_slice(elements));
        Ok(Self::new(Storage::cpu(block), View::contiguous(shape), T::DTYPE))
    }

    /// A tensor of one element and no dims.
    pub fn scalar<T: Element>(element: T) -> Result<Self, TensorError> {
        Self::from_slice(&[element], &[])
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, dims: &[usize], device: Device) -> Result<Self, TensorError> {
        let shape = Shape::new(dims)?;
        let storage = match device {
            Device::Meta => Storage::meta(),
            Device::Cpu => {
                let mut block = Block::new(shape.volume() * dtype.size())?;
                block.bytes_mut().fill(0);
                Storage::cpu(block)
            }
        };
        Ok(Self::new(storage, View::contiguous(shape), dtype))
    }

    pub(crate) fn new(storage: Storage, view: View, dtype: DType) -> Self {
        Self(Arc::new(Inner { storage, view, dtype, origin: Origin::Constant }))
    }

    /// A tensor without data.
    pub(crate) fn meta(shape: Shape, dtype: DType) -> Self {
        Self::new(Storage::meta(), View::contiguous(shape), dtype)
    }

    /// The same elements, with another place on the tape.
    pub(crate) fn with_origin(&self, origin: Origin) -> Self {
        let Inner { storage, view, dtype, .. } = &*self.0;
        Self(Arc::new(Inner { storage: storage.clone(), view: view.clone(), dtype: *dtype, origin }))
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.0.origin
    }

    pub(crate) fn view(&self) -> &View {
        &self.0.view
    }

    /// The same elements seen otherwise, off the tape.
    pub(crate) fn seen_as(&self, view: View) -> Self {
        Self::new(self.0.storage.clone(), view, self.0.dtype)
    }

    /// This tensor as a parameter: [`backward`](crate::backward) computes its
    /// gradient.
    pub fn requires_grad(&self) -> Self {
        self.with_origin(Origin::parameter())
    }

    /// The same elements, cut off from the tape.
    pub fn detach(&self) -> Self {
        self.with_origin(Origin::Constant)
    }

    /// Whether gradients flow through this tensor.
    pub fn tracks_gradient(&self) -> bool {
        !matches!(self.0.origin, Origin::Constant)
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.0.view.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Where the memory is.
    pub fn device(&self) -> Device {
        self.0.storage.device()
    }

    /// Elements between neighbours in each dim.
    pub fn strides(&self) -> &[usize] {
        &self.0.view.strides
    }

    /// Whether elements follow one another in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.0.view.is_contiguous()
    }

    /// The elements, row-major. This is the one way to data from outside.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        if T::DTYPE != self.dtype() {
            return Err(TensorError::ReadAs { dtype: self.dtype(), asked: T::DTYPE });
        }
        let packed = self.packed("to_vec")?;
        Ok(packed.elements::<T>("to_vec")?.to_vec())
    }

    /// The one element of a tensor that has one.
    pub fn item<T: Element>(&self) -> Result<T, TensorError> {
        match self.to_vec()?.as_slice() {
            [element] => Ok(*element),
            elements => Err(TensorError::ElementCount { shape: Shape::default(), found: elements.len() }),
        }
    }

    /// The elements of a contiguous tensor.
    pub(crate) fn elements<T: Element>(&self, op: &'static str) -> Result<&[T], TensorError> {
        debug_assert!(self.is_contiguous() && T::DTYPE == self.dtype());
        let all = self.storage_elements(op)?;
        Ok(&all[self.0.view.offset..self.0.view.offset + self.shape().volume()])
    }

    /// The bytes of a contiguous tensor.
    pub(crate) fn bytes(&self, op: &'static str) -> Result<&[u8], TensorError> {
        let width = self.dtype().size();
        let no_data = || TensorError::NoData { op, shape: self.shape().clone() };
        let bytes = self.0.storage.bytes().ok_or_else(no_data)?;
        let start = self.0.view.offset * width;
        Ok(&bytes[start..start + self.shape().volume() * width])
    }

    /// All elements of the storage, for kernels that follow strides.
    pub(crate) fn storage_elements<T: Element>(&self, op: &'static str) -> Result<&[T], TensorError> {
        let no_data = || TensorError::NoData { op, shape: self.shape().clone() };
        let bytes = self.0.storage.bytes().ok_or_else(no_data)?;
        Ok(bytemuck::cast_slice(bytes))
    }

    /// These elements without gaps, copied only if there are any; off the tape.
    pub(crate) fn packed(&self, op: &'static str) -> Result<Self, TensorError> {
        if self.is_contiguous() || self.device() == Device::Meta {
            return Ok(self.detach());
        }
        kernels::copy::packed(self, op)
    }

    pub(crate) fn check_dim(&self, op: &'static str, dim: usize) -> Result<(), TensorError> {
        if dim < self.shape().ndim() {
            return Ok(());
        }
        Err(TensorError::Dim { op, dim, shape: self.shape().clone() })
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} on {})", self.shape(), self.dtype(), self.device())
    }
}
