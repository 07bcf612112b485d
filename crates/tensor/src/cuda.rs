//! Kernels on NVIDIA GPUs: how operations become launches.
//!
//! One file per family of operations. The kernels themselves are in the crate
//! `weightloom-cuda`. Indices and document starts are read by the host, which checks
//! them before a launch.

mod attention;
mod comparison;
mod copy;
mod cross_entropy;
mod elementwise;
mod index;
mod library;
mod matmul;
mod norm;
mod optimizer;
mod random;
mod reduce;
mod rope;
mod softmax;
mod sort;

use std::sync::Arc;

pub use library::ProductLibrary;

use bytemuck::{Pod, Zeroable};
use weightloom_cuda::{Arg, CudaError, DeviceBlock, Gpu, Grid};
use weightloom_layout::{DType, Shape};

use crate::backend::Backend;
use crate::error::{Result, TensorError};
use crate::kernels::copy::CopyKernels as _;
use crate::kernels::strides::Walk;
use crate::storage::{GpuMemory, HostCopy, Storage};
use crate::tensor::Tensor;
use crate::view::View;

/// A GPU by its number.
#[derive(Clone, Copy)]
pub(crate) struct Cuda(pub(crate) u8);

impl Backend for Cuda {}

/// The backends of all GPUs there could be.
pub(crate) static GPUS: [Cuda; 256] = {
    let mut gpus = [Cuda(0); 256];
    let mut number = 0;
    while number < 256 {
        gpus[number] = Cuda(number as u8);
        number += 1;
    }
    gpus
};

/// Dims and strides of up to three operands, as kernels take them.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Strides {
    ndim: u64,
    dims: [u64; 32],
    strides: [[u64; 32]; 3],
}

/// Bytes that a thread moves at a time, where it can.
const UNIT: usize = 16;

impl Strides {
    /// The same of units of 16 bytes in place of elements, for the first operands; none
    /// if some would not begin and end at a unit.
    fn in_units(&self, operands: usize, dtype: DType) -> Option<Self> {
        let per_unit = (UNIT / dtype.size()) as u64;
        let last = self.ndim.checked_sub(1)? as usize;
        let mut units = *self;
        if per_unit == 1 || !self.dims[last].is_multiple_of(per_unit) {
            return None;
        }
        units.dims[last] /= per_unit;
        for strides in units.strides.iter_mut().take(operands) {
            let (inner, outer) = strides[..=last].split_last_mut()?;
            if *inner != 1 || outer.iter().any(|stride| !stride.is_multiple_of(per_unit)) {
                return None;
            }
            outer.iter_mut().for_each(|stride| *stride /= per_unit);
        }
        Some(units)
    }

    fn new<const N: usize>(shape: &[usize], strides: [&[usize]; N]) -> Self {
        let walk = Walk::new(shape, strides);
        let mut result = Self::zeroed();
        result.ndim = walk.dims.len() as u64;
        for (dim, &size) in walk.dims.iter().enumerate() {
            result.dims[dim] = size as u64;
            for operand in 0..N {
                result.strides[operand][dim] = walk.strides_of(operand)[dim] as u64;
            }
        }
        result
    }
}

/// A struct as an argument.
fn bytes<T: Pod>(value: &T) -> Arg<'_> {
    Arg::Bytes(bytemuck::bytes_of(value))
}

fn count(number: usize) -> Arg<'static> {
    Arg::U64(number as u64)
}

/// The name of a dtype in names of kernels.
fn suffix(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "f64",
        DType::F32 => "f32",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::F8E4M3 => "f8_e4m3",
        DType::F8E5M2 => "f8_e5m2",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::I16 => "i16",
        DType::I8 => "i8",
        DType::U64 => "u64",
        DType::U32 => "u32",
        DType::U16 => "u16",
        DType::U8 => "u8",
        DType::Bool => "bool",
    }
}

/// The same for floats that kernels compute with.
fn float(op: &'static str, dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F64 | DType::F32 | DType::Bf16 | DType::F16 => Ok(suffix(dtype)),
        dtype => Err(TensorError::DType { op, dtype }),
    }
}

/// For kernels that only move elements.
fn size_suffix(dtype: DType) -> &'static str {
    match dtype.size() {
        1 => "b1",
        2 => "b2",
        4 => "b4",
        _ => "b8",
    }
}

/// The dtype that elements of a dtype are computed in.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Threads of a block, as in the kernels' `THREADS`.
const THREADS: u32 = 256;

/// The most blocks of a launch: kernels loop over the rest.
const BLOCKS: usize = 1 << 20;

/// The same where a thread takes several elements at a time: more would only end at
/// once.
const BLOCKS_OF_ELEMENTS: usize = 1 << 13;

/// A grid with a thread for each element.
fn each(elements: usize) -> Grid {
    let blocks = elements.div_ceil(THREADS as usize).clamp(1, BLOCKS_OF_ELEMENTS);
    Grid::new([blocks as u32, 1, 1], THREADS)
}

/// A grid with a block for each row.
fn rows(rows: usize) -> Grid {
    Grid::new([rows.clamp(1, BLOCKS) as u32, 1, 1], THREADS)
}

/// The address of the first element of a tensor on a GPU.
fn address(op: &'static str, x: &Tensor) -> Result<Arg<'static>> {
    let block = x.device_block().ok_or_else(|| TensorError::NoData { op, shape: x.shape().clone() })?;
    // The offset of an empty view may be past the end.
    let offset = (x.view().offset * x.dtype().size()).min(block.len());
    Ok(Arg::Address(block.address() + offset as u64))
}

/// Whether an address is one of a unit of 16 bytes.
fn is_aligned(address: Arg<'_>) -> bool {
    matches!(address, Arg::Address(address) if address.is_multiple_of(UNIT as u64))
}

/// The address of a tensor, or none.
fn optional(op: &'static str, x: Option<&Tensor>) -> Result<Arg<'static>> {
    x.map_or(Ok(Arg::Null), |x| address(op, x))
}

impl Cuda {
    fn gpu(self) -> Result<Arc<Gpu>> {
        Ok(Gpu::get(self.0)?)
    }

    /// A new contiguous tensor, not cleared.
    fn empty(self, dtype: DType, shape: &Shape) -> Result<Tensor> {
        let block = self.gpu()?.allocate(shape.volume() * dtype.size())?;
        Ok(self.tensor(block, dtype, shape))
    }

    fn tensor(self, block: DeviceBlock, dtype: DType, shape: &Shape) -> Tensor {
        self.tensor_with(block, None, dtype, shape)
    }

    fn tensor_with(self, block: DeviceBlock, host: Option<HostCopy>, dtype: DType, shape: &Shape) -> Tensor {
        let memory = GpuMemory { ordinal: self.0, block, host };
        Tensor::new(Storage::cuda(memory), View::contiguous(shape.clone()), dtype)
    }

    /// A list of numbers in device memory.
    fn upload<T: Pod>(self, dtype: DType, values: &[T]) -> Result<Tensor> {
        debug_assert_eq!(size_of::<T>(), dtype.size());
        self.upload_bytes(dtype, &Shape::new(&[values.len()])?, bytemuck::cast_slice(values))
    }

    pub(crate) fn upload_bytes(self, dtype: DType, shape: &Shape, bytes: &[u8]) -> Result<Tensor> {
        let gpu = self.gpu()?;
        let mut block = gpu.allocate(bytes.len())?;
        gpu.upload(&mut block, bytes)?;
        Ok(self.tensor(block, dtype, shape))
    }

    /// The elements of another device's tensor, through the host, which keeps
    /// indices: it checks them before they are used.
    pub(crate) fn receive(self, x: &Tensor) -> Result<Tensor> {
        let x = x.on_host("to")?;
        let (gpu, bytes) = (self.gpu()?, x.bytes("to")?);
        let mut block = gpu.allocate(bytes.len())?;
        gpu.upload(&mut block, bytes)?;
        let host = HostCopy { storage: x.storage().clone(), first: x.view().offset };
        Ok(self.tensor_with(block, (x.dtype() == DType::I64).then_some(host), x.dtype(), x.shape()))
    }

    /// Queues a kernel. A launch without elements is left out.
    fn launch(self, kernel: &str, grid: Grid, elements: usize, args: &[Arg<'_>]) -> Result<()> {
        if elements == 0 {
            return Ok(());
        }
        Ok(self.gpu()?.launch(kernel, grid, args)?)
    }

    /// Where the result of a kernel goes that may overwrite an operand: the operand's
    /// own memory if nothing else uses it, else new memory. Returns the operand's
    /// address and the result; the operand must live until the kernel is queued.
    fn reuse(self, op: &'static str, mut x: Tensor) -> Result<Reused> {
        if x.is_unique_and_contiguous() {
            let out = x.detach();
            return Ok(Reused { source: address(op, &out)?, out, _kept: None });
        }
        let x = x.into_contiguous(op)?;
        let out = self.empty(x.dtype(), x.shape())?;
        Ok(Reused { source: address(op, &x)?, out, _kept: Some(x) })
    }

    /// The tensor itself if its memory may be changed, else a copy.
    fn owned(self, op: &'static str, mut x: Tensor) -> Result<Tensor> {
        if x.is_unique_and_contiguous() { Ok(x.detach()) } else { self.pack(op, &x) }
    }
}

/// An operand and the memory of the result.
struct Reused {
    source: Arg<'static>,
    out: Tensor,
    _kept: Option<Tensor>,
}

impl From<CudaError> for TensorError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}
