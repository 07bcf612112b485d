//! The tensor itself: making it, looking at it, viewing it.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use weightloom_layout::{DType, Shape};

use crate::backend::on;
use crate::device::Device;
use crate::element::Element;
use crate::error::TensorError;
use crate::memory::Block;
use crate::storage::{Owner, Storage};
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

    /// A tensor of bools, row-major.
    pub fn from_bools(elements: &[bool], dims: &[usize]) -> Result<Self, TensorError> {
        let bytes: Vec<u8> = elements.iter().map(|&element| u8::from(element)).collect();
        let held = Self::from_slice(&bytes, dims)?;
        Ok(Self::new(held.0.storage.clone(), held.0.view.clone(), DType::Bool))
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, dims: &[usize], device: Device) -> Result<Self, TensorError> {
        Self::full(0.0, dtype, dims, device)
    }

    /// A tensor of one value. Integers take it without its fraction, bools
    /// whether it is not zero.
    pub fn full(value: f64, dtype: DType, dims: &[usize], device: Device) -> Result<Self, TensorError> {
        on(device).fill(value, dtype, &Shape::new(dims)?)
    }

    pub(crate) fn new(storage: Storage, view: View, dtype: DType) -> Self {
        Self(Arc::new(Inner { storage, view, dtype, origin: Origin::Constant }))
    }

    /// A tensor without data.
    pub(crate) fn meta(shape: Shape, dtype: DType) -> Self {
        let bytes = shape.volume() as u64 * dtype.size() as u64;
        Self::new(Storage::meta(bytes), View::contiguous(shape), dtype)
    }

    /// A shape and a dtype, which take no memory.
    pub(crate) fn nothing(shape: Shape, dtype: DType) -> Self {
        Self::new(Storage::nothing(), View::contiguous(shape), dtype)
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

    /// The same elements, cut off from the tape, and not kept by it: whatever
    /// needs them for a gradient has them made again.
    pub fn remade_by(&self, maker: impl Fn() -> Result<Self, TensorError> + Send + Sync + 'static) -> Self {
        self.with_origin(Origin::Remade(Arc::new(maker)))
    }

    /// Whether gradients flow through this tensor.
    pub fn tracks_gradient(&self) -> bool {
        !matches!(self.0.origin, Origin::Constant | Origin::Remade(_))
    }

    /// Whether this is a tensor whose gradient is wanted, rather than the result
    /// of a function.
    pub fn is_parameter(&self) -> bool {
        matches!(self.0.origin, Origin::Parameter(_))
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

    /// The elements of a tensor of bools, row-major.
    pub fn to_bools(&self) -> Result<Vec<bool>, TensorError> {
        if self.dtype() != DType::Bool {
            return Err(TensorError::ReadAs { dtype: self.dtype(), asked: DType::Bool });
        }
        Ok(self.packed("to_bools")?.bytes("to_bools")?.iter().map(|&byte| byte != 0).collect())
    }

    /// The one element of a tensor that has one.
    pub fn item<T: Element>(&self) -> Result<T, TensorError> {
        match self.to_vec()?.as_slice() {
            [element] => Ok(*element),
            elements => Err(TensorError::ElementCount { shape: Shape::default(), found: elements.len() }),
        }
    }

    /// A tensor in host memory that `fill` writes, byte by byte as its elements
    /// lie in row-major order. The bytes are whatever was there before.
    pub fn from_host(
        dtype: DType,
        shape: &Shape,
        fill: impl FnOnce(&mut [u8]) -> Result<(), TensorError>,
    ) -> Result<Self, TensorError> {
        let mut block = Block::new(shape.volume() * dtype.size())?;
        fill(block.bytes_mut())?;
        Ok(Self::new(Storage::cpu(block), View::contiguous(shape.clone()), dtype))
    }

    /// A tensor over bytes that somebody else owns, such as a mapped file, from
    /// `offset` on. Nothing is copied; whatever changes the tensor copies first.
    ///
    /// The owner must give the same bytes every time.
    pub fn from_shared(
        dtype: DType,
        shape: &Shape,
        owner: Owner,
        offset: usize,
    ) -> Result<Self, TensorError> {
        let (asked, bytes) = (shape.volume() * dtype.size(), (*owner).as_ref());
        let outside = TensorError::Shared { shape: shape.clone(), dtype, offset, found: bytes.len() };
        let range = offset..offset.checked_add(asked).ok_or(outside.clone())?;
        let part = bytes.get(range.clone()).ok_or(outside)?;
        let address = part.as_ptr().addr();
        if !address.is_multiple_of(dtype.size()) {
            return Err(TensorError::Misaligned { dtype, offset, address });
        }
        Ok(Self::new(Storage::shared(owner, range), View::contiguous(shape.clone()), dtype))
    }

    /// The bytes of its elements in row-major order; packed first if they are
    /// elsewhere or not in order.
    pub fn read_host<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Result<T, TensorError> {
        Ok(read(self.packed("read_host")?.bytes("read_host")?))
    }

    /// The bytes of its elements in row-major order, if they lie like this in
    /// host memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        (self.is_contiguous() && self.device() != Device::Meta)
            .then(|| self.bytes("host_bytes").ok())
            .flatten()
    }

    /// The elements of a contiguous tensor.
    pub(crate) fn elements<T: Element>(&self, op: &'static str) -> Result<&[T], TensorError> {
        debug_assert!(T::DTYPE == self.dtype());
        self.bits(op)
    }

    /// The elements of a contiguous tensor, in a type of their size.
    pub(crate) fn bits<U: Pod>(&self, op: &'static str) -> Result<&[U], TensorError> {
        debug_assert!(self.is_contiguous());
        let all = self.storage_bits(op)?;
        let start = self.0.view.offset.min(all.len());
        Ok(&all[start..start + self.shape().volume()])
    }

    /// The bytes of a contiguous tensor.
    pub(crate) fn bytes(&self, op: &'static str) -> Result<&[u8], TensorError> {
        debug_assert!(self.is_contiguous());
        let (all, width) = (self.storage_bits(op)?, self.dtype().size());
        let start = (self.0.view.offset * width).min(all.len());
        Ok(&all[start..start + self.shape().volume() * width])
    }

    /// All elements of the storage, for kernels that follow strides.
    pub(crate) fn storage_elements<T: Element>(&self, op: &'static str) -> Result<&[T], TensorError> {
        self.storage_bits(op)
    }

    /// All elements of the storage, in a type of their size.
    pub(crate) fn storage_bits<U: Pod>(&self, op: &'static str) -> Result<&[U], TensorError> {
        let no_data = || TensorError::NoData { op, shape: self.shape().clone() };
        let bytes = self.0.storage.bytes().ok_or_else(no_data)?;
        Ok(bytemuck::cast_slice(bytes))
    }

    /// Whether nobody else uses its memory, data or not.
    pub(crate) fn is_alone(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some_and(|inner| inner.storage.is_alone())
    }

    /// Whether the elements have no gaps and nobody else uses their memory.
    pub(crate) fn is_held_alone(&mut self) -> bool {
        self.is_contiguous()
            && Arc::get_mut(&mut self.0).is_some_and(|inner| inner.storage.bytes_mut().is_some())
    }

    /// If somebody else holds the elements, gives them back and takes memory of
    /// its own, in which there is anything.
    pub(crate) fn set_aside(&mut self, op: &'static str) -> Result<Option<Self>, TensorError> {
        if self.is_held_alone() {
            return Ok(None);
        }
        let old = self.packed(op)?;
        let block = Block::new(self.shape().volume() * self.dtype().size())?;
        let new = Self::new(Storage::cpu(block), View::contiguous(self.shape().clone()), self.dtype());
        *self = new.with_origin(self.origin().clone());
        Ok(Some(old))
    }

    /// The elements, to be changed. If they are used elsewhere or have gaps,
    /// this tensor gets memory of its own first.
    pub(crate) fn elements_mut<T: Element>(&mut self, op: &'static str) -> Result<&mut [T], TensorError> {
        debug_assert!(T::DTYPE == self.dtype());
        self.bits_mut(op)
    }

    /// The same, in a type of their size.
    pub(crate) fn bits_mut<U: Pod>(&mut self, op: &'static str) -> Result<&mut [U], TensorError> {
        if !self.is_held_alone() {
            *self = on(self.device()).pack(op, self)?.with_origin(self.origin().clone());
        }
        let no_data = TensorError::NoData { op, shape: self.shape().clone() };
        let count = self.shape().volume();
        let inner = Arc::get_mut(&mut self.0);
        let found = inner.and_then(|Inner { storage, view, .. }| Some((storage.bytes_mut()?, view.offset)));
        let (bytes, start) = found.ok_or(no_data)?;
        let all = bytemuck::cast_slice_mut(bytes);
        // An empty view may begin behind the end.
        let start = start.min(all.len());
        Ok(&mut all[start..start + count])
    }

    /// These elements without gaps, copied only if there are any; off the tape.
    pub(crate) fn packed(&self, op: &'static str) -> Result<Self, TensorError> {
        if self.is_contiguous() { Ok(self.detach()) } else { on(self.device()).pack(op, self) }
    }

    /// The same, of a tensor that is no longer needed.
    pub(crate) fn into_packed(self, op: &'static str) -> Result<Self, TensorError> {
        if self.is_contiguous() { Ok(self) } else { on(self.device()).pack(op, &self) }
    }

    /// The shape and dtype without the memory.
    pub(crate) fn shape_only(&self) -> Self {
        Self::nothing(self.shape().clone(), self.dtype())
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
