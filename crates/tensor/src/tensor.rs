//! The tensor: creation, metadata and access to its elements.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use weightloom_cuda::DeviceBlock;
use weightloom_layout::{DType, Shape};

use crate::backend::on;
use crate::device::Device;
use crate::element::Element;
use crate::error::{Result, TensorError};
use crate::memory::Block;
use crate::storage::{Owner, Storage};
use crate::tape::Origin;
use crate::view::View;

/// A strided view of shared memory on one device. Clones share the memory.
///
/// ```
/// use weightloom_tensor::{Tensor, TensorError, backward};
///
/// let x = Tensor::from_slice(&[1.0, 2.0, 3.0], &[3])?.requires_grad();
/// let loss = x.mul(&x)?.sum_all()?;
/// assert_eq!(loss.item::<f64>()?, 14.0);
/// let gradients = backward([(loss, None)])?;
/// assert_eq!(gradients.of(&x).expect("a parameter").to_vec::<f64>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), TensorError>(())
/// ```
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
    pub fn from_slice<T: Element>(elements: &[T], dims: &[usize]) -> Result<Self> {
        let shape = Shape::new(dims)?;
        if shape.volume() != elements.len() {
            return Err(TensorError::ElementCount { shape, found: elements.len() });
        }
        let mut block = Block::new(size_of_val(elements))?;
        block.bytes_mut().copy_from_slice(bytemuck::cast_slice(elements));
        Ok(Self::new(Storage::cpu(block), View::contiguous(shape), T::DTYPE))
    }

    /// A 0-dimensional tensor.
    pub fn scalar<T: Element>(element: T) -> Result<Self> {
        Self::from_slice(&[element], &[])
    }

    /// A tensor of bools, row-major.
    pub fn from_bools(elements: &[bool], dims: &[usize]) -> Result<Self> {
        let bytes: Vec<u8> = elements.iter().map(|&element| u8::from(element)).collect();
        let held = Self::from_slice(&bytes, dims)?;
        Ok(Self::new(held.0.storage.clone(), held.0.view.clone(), DType::Bool))
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, dims: &[usize], device: Device) -> Result<Self> {
        Self::full(0.0, dtype, dims, device)
    }

    /// A tensor filled with a value. Integers drop its fraction; bools are true
    /// unless it is zero.
    pub fn full(value: f64, dtype: DType, dims: &[usize], device: Device) -> Result<Self> {
        on(device).fill(value, dtype, &Shape::new(dims)?)
    }

    pub(crate) fn new(storage: Storage, view: View, dtype: DType) -> Self {
        Self(Arc::new(Inner { storage, view, dtype, origin: Origin::Constant }))
    }

    /// A meta tensor.
    pub(crate) fn meta(shape: Shape, dtype: DType) -> Self {
        let bytes = shape.volume() as u64 * dtype.size() as u64;
        Self::new(Storage::meta(bytes), View::contiguous(shape), dtype)
    }

    /// A shape and a dtype that a [`Meter`](crate::Meter) does not count.
    pub(crate) fn without_memory(shape: Shape, dtype: DType) -> Self {
        Self::new(Storage::without_memory(), View::contiguous(shape), dtype)
    }

    /// The same elements at another place on the tape.
    pub(crate) fn with_origin(&self, origin: Origin) -> Self {
        let Inner { storage, view, dtype, .. } = &*self.0;
        Self(Arc::new(Inner { storage: storage.clone(), view: view.clone(), dtype: *dtype, origin }))
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.0.origin
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.0.storage
    }

    pub(crate) fn view(&self) -> &View {
        &self.0.view
    }

    /// Another view of the same elements, off the tape.
    pub(crate) fn with_view(&self, view: View) -> Self {
        Self::new(self.0.storage.clone(), view, self.0.dtype)
    }

    /// This tensor as a leaf parameter: [`backward`](crate::backward) computes its
    /// gradient.
    pub fn requires_grad(&self) -> Self {
        self.with_origin(Origin::parameter())
    }

    /// The same elements, cut off from the tape.
    pub fn detach(&self) -> Self {
        self.with_origin(Origin::Constant)
    }

    /// The same elements, cut off from the tape, which does not keep them: where a
    /// gradient needs them, `recompute` makes them again.
    pub fn recomputed_by(&self, maker: impl Fn() -> Result<Self> + Send + Sync + 'static) -> Self {
        self.with_origin(Origin::Recomputed(Arc::new(maker)))
    }

    /// Whether gradients flow through this tensor.
    pub fn tracks_gradient(&self) -> bool {
        !matches!(self.0.origin, Origin::Constant | Origin::Recomputed(_))
    }

    /// Whether this is a leaf that [requires a gradient](Self::requires_grad).
    pub fn is_parameter(&self) -> bool {
        matches!(self.0.origin, Origin::Parameter(_))
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.0.view.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The device of the memory.
    pub fn device(&self) -> Device {
        self.0.storage.device()
    }

    /// Strides in elements.
    pub fn strides(&self) -> &[usize] {
        &self.0.view.strides
    }

    /// Whether elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.0.view.is_contiguous()
    }

    /// The elements, row-major.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(TensorError::ReadAs { dtype: self.dtype(), asked: T::DTYPE });
        }
        let packed = self.on_host("to_vec")?;
        Ok(packed.elements::<T>("to_vec")?.to_vec())
    }

    /// The elements of a tensor of bools, row-major.
    pub fn to_bools(&self) -> Result<Vec<bool>> {
        if self.dtype() != DType::Bool {
            return Err(TensorError::ReadAs { dtype: self.dtype(), asked: DType::Bool });
        }
        Ok(self.on_host("to_bools")?.bytes("to_bools")?.iter().map(|&byte| byte != 0).collect())
    }

    /// The only element of a tensor with one element.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec()?.as_slice() {
            [element] => Ok(*element),
            elements => Err(TensorError::ElementCount { shape: Shape::default(), found: elements.len() }),
        }
    }

    /// A tensor whose bytes `fill` writes, in row-major order. The memory is not
    /// cleared before.
    pub fn from_host(
        dtype: DType,
        shape: &Shape,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        let mut block = Block::new(shape.volume() * dtype.size())?;
        fill(block.bytes_mut())?;
        Ok(Self::new(Storage::cpu(block), View::contiguous(shape.clone()), dtype))
    }

    /// A tensor over the bytes of an owner, such as a mapped file, from `offset`.
    /// Nothing is copied; operations that change the tensor copy first.
    ///
    /// The owner must return the same bytes every time.
    pub fn from_shared(dtype: DType, shape: &Shape, owner: Owner, offset: usize) -> Result<Self> {
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

    /// Calls `read` with the bytes of the elements in row-major order, copied
    /// first if they are not contiguous.
    pub fn read_host<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        Ok(read(self.on_host("read_host")?.bytes("read_host")?))
    }

    /// The bytes of the elements, if they are contiguous in host memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        (self.is_contiguous() && self.device() == Device::Cpu)
            .then(|| self.bytes("host_bytes").ok())
            .flatten()
    }

    /// Copies bytes of the elements in row-major order, from byte `offset` on. Only
    /// these are copied from a device if the tensor is contiguous.
    pub fn read_bytes(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let (bytes, end) = (self.shape().volume() * self.dtype().size(), offset.saturating_add(into.len()));
        if end > bytes {
            let shape = self.shape().clone();
            return Err(TensorError::ByteRange { op: "read_bytes", start: offset, end, bytes, shape });
        }
        match self.device_block() {
            Some(block) if self.is_contiguous() => {
                let start = self.view().offset * self.dtype().size();
                Ok(block.gpu().download(block, start + offset, into)?)
            }
            _ => self.read_host(|bytes| into.copy_from_slice(&bytes[offset..end])),
        }
    }

    /// The elements of a contiguous tensor.
    pub(crate) fn elements<T: Element>(&self, op: &'static str) -> Result<&[T]> {
        debug_assert!(T::DTYPE == self.dtype());
        self.bits(op)
    }

    /// The elements of a contiguous tensor, in a type of their size.
    pub(crate) fn bits<U: Pod>(&self, op: &'static str) -> Result<&[U]> {
        debug_assert!(self.is_contiguous());
        let all = self.storage_bits(op)?;
        let start = self.0.view.offset.min(all.len());
        Ok(&all[start..start + self.shape().volume()])
    }

    /// The bytes of a contiguous tensor.
    pub(crate) fn bytes(&self, op: &'static str) -> Result<&[u8]> {
        debug_assert!(self.is_contiguous());
        let (all, width) = (self.storage_bits(op)?, self.dtype().size());
        let start = (self.0.view.offset * width).min(all.len());
        Ok(&all[start..start + self.shape().volume() * width])
    }

    /// All elements of the storage, for kernels that follow strides.
    pub(crate) fn storage_elements<T: Element>(&self, op: &'static str) -> Result<&[T]> {
        self.storage_bits(op)
    }

    /// All elements of the storage, in a type of their size.
    pub(crate) fn storage_bits<U: Pod>(&self, op: &'static str) -> Result<&[U]> {
        let no_data = || TensorError::NoData { op, shape: self.shape().clone() };
        let bytes = self.0.storage.bytes().ok_or_else(no_data)?;
        Ok(bytemuck::cast_slice(bytes))
    }

    /// Whether this is the only reference to its memory, data or not.
    pub(crate) fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some_and(|inner| inner.storage.is_unique())
    }

    /// Whether the elements are contiguous in memory that is not shared.
    pub(crate) fn is_unique_and_contiguous(&mut self) -> bool {
        self.is_contiguous() && Arc::get_mut(&mut self.0).is_some_and(|inner| inner.storage.is_writable())
    }

    /// If the memory is shared, returns the old elements and moves this tensor to
    /// new, uninitialised memory.
    pub(crate) fn detach_shared_memory(&mut self, op: &'static str) -> Result<Option<Self>> {
        if self.is_unique_and_contiguous() {
            return Ok(None);
        }
        let old = self.contiguous(op)?;
        let block = Block::new(self.shape().volume() * self.dtype().size())?;
        let new = Self::new(Storage::cpu(block), View::contiguous(self.shape().clone()), self.dtype());
        *self = new.with_origin(self.origin().clone());
        Ok(Some(old))
    }

    /// The elements, mutable. Copies them first if they are shared or not
    /// contiguous.
    pub(crate) fn elements_mut<T: Element>(&mut self, op: &'static str) -> Result<&mut [T]> {
        debug_assert!(T::DTYPE == self.dtype());
        self.bits_mut(op)
    }

    /// The same, in a type of their size.
    pub(crate) fn bits_mut<U: Pod>(&mut self, op: &'static str) -> Result<&mut [U]> {
        if !self.is_unique_and_contiguous() {
            *self = on(self.device()).pack(op, self)?.with_origin(self.origin().clone());
        }
        let no_data = TensorError::NoData { op, shape: self.shape().clone() };
        let count = self.shape().volume();
        let inner = Arc::get_mut(&mut self.0);
        let found = inner.and_then(|Inner { storage, view, .. }| Some((storage.bytes_mut()?, view.offset)));
        let (bytes, start) = found.ok_or(no_data)?;
        let all = bytemuck::cast_slice_mut(bytes);
        // The offset of an empty view may be past the end.
        let start = start.min(all.len());
        Ok(&mut all[start..start + count])
    }

    /// The memory, if it is a GPU's.
    pub(crate) fn device_block(&self) -> Option<&DeviceBlock> {
        self.0.storage.device_block()
    }

    /// The elements, contiguous in host memory; copied only if they are not. Off the
    /// tape.
    pub(crate) fn on_host(&self, op: &'static str) -> Result<Self> {
        if let Some(host) = self.0.storage.host_copy() {
            let mut view = self.view().clone();
            view.offset += host.first;
            return Self::new(host.storage.clone(), view, self.dtype()).contiguous(op);
        }
        let packed = self.contiguous(op)?;
        let Some(block) = packed.device_block() else { return Ok(packed) };
        let offset = packed.view().offset * self.dtype().size();
        Self::from_host(self.dtype(), self.shape(), |bytes| Ok(block.gpu().download(block, offset, bytes)?))
    }

    /// The elements, contiguous; copied only if they are not. Off the tape.
    pub(crate) fn contiguous(&self, op: &'static str) -> Result<Self> {
        if self.is_contiguous() { Ok(self.detach()) } else { on(self.device()).pack(op, self) }
    }

    /// The same by value, so that unique memory stays unique.
    pub(crate) fn into_contiguous(self, op: &'static str) -> Result<Self> {
        if self.is_contiguous() { Ok(self) } else { on(self.device()).pack(op, &self) }
    }

    /// The shape and dtype without the memory.
    pub(crate) fn shape_only(&self) -> Self {
        Self::without_memory(self.shape().clone(), self.dtype())
    }

    pub(crate) fn check_dim(&self, op: &'static str, dim: usize) -> Result<()> {
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
