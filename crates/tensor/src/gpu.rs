//! Facts about the GPUs of this machine, and a test of one.

use std::time::Instant;

use weightloom_cuda::{CudaError, DeviceInfo, Gpu, KernelCode, count, kernel_code};
use weightloom_layout::DType;

use crate::cuda::{Cuda, ProductLibrary};
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::random::Stream;
use crate::tensor::Tensor;

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GpuFacts {
    pub device: Device,
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Bytes of memory.
    pub memory: usize,
    /// Bytes that no program uses.
    pub free: usize,
    /// The CUDA version that the driver supports.
    pub cuda: (u32, u32),
    /// The number of kernels in this program.
    pub kernels: usize,
    /// What the GPU runs of them; `None` if nothing.
    pub kernel_code: Option<KernelCode>,
}

/// The GPUs of this machine; none without a driver.
pub fn gpus() -> Result<Vec<GpuFacts>> {
    let found = match count() {
        Err(CudaError::NoDriver) => 0,
        found => found?,
    };
    let numbers = 0..u8::try_from(found).unwrap_or(u8::MAX);
    numbers.map(|ordinal| Ok(facts(ordinal, &*Gpu::get(ordinal)?)?)).collect()
}

fn facts(ordinal: u8, gpu: &Gpu) -> Result<GpuFacts, CudaError> {
    let DeviceInfo { name, capability, memory, driver_version, .. } = gpu.info().clone();
    Ok(GpuFacts {
        device: Device::Cuda(ordinal),
        name,
        capability,
        memory,
        free: gpu.memory()?.0,
        cuda: (driver_version / 1000, driver_version % 1000 / 10),
        kernels: weightloom_cuda::names().count(),
        kernel_code: kernel_code(capability),
    })
}

/// Who computes large products of halves on a device; `None` on the CPU. The first
/// call searches for the library and tests it.
pub fn product_library(device: Device) -> Result<Option<&'static ProductLibrary>> {
    match device {
        Device::Cuda(ordinal) => Cuda(ordinal).product_library().map(Some),
        Device::Cpu | Device::Meta => Ok(None),
    }
}

/// What a short test of a GPU measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfTest {
    /// Whether rows of products have the same bits in every batch.
    pub rows_are_exact: bool,
    /// Whether products agree with those of the CPU up to rounding.
    pub agrees_with_cpu: bool,
    /// Bytes per second to the device, from ordinary memory.
    pub upload_rate: f64,
    /// Bytes per second from the device, to ordinary memory.
    pub download_rate: f64,
}

impl SelfTest {
    /// Computes and copies for a fraction of a second.
    pub fn run(device: Device) -> Result<Self> {
        let (mut rows_are_exact, mut agrees_with_cpu) = (true, true);
        for dtype in [DType::Bf16, DType::F16, DType::F32, DType::F64] {
            let x = Tensor::normal(dtype, &[130, 300], Stream { seed: 1, number: 0 }, 0)?;
            let weight = Tensor::normal(dtype, &[70, 300], Stream { seed: 1, number: 1 }, 0)?;
            let expected = x.linear(&weight, None, None)?;
            let (x, weight) = (x.to(device)?, weight.to(device)?);
            let found = x.linear(&weight, None, None)?;
            let alone = x.narrow(0, 64, 1)?.linear(&weight, None, None)?;
            rows_are_exact &= bytes(&alone)? == bytes(&found.narrow(0, 64, 1)?)?;
            agrees_with_cpu &= largest_difference(&expected, &found)? <= tolerance(dtype);
        }
        const SIZE: usize = 64 << 20;
        let host = Tensor::zeros(DType::U8, &[SIZE], Device::Cpu)?;
        // The first copies allocate.
        host.to(device)?.to(Device::Cpu)?;
        let start = Instant::now();
        let moved = host.to(device)?;
        // Waits for the copy.
        moved.narrow(0, SIZE - 1, 1)?.to_vec::<u8>()?;
        let upload_rate = SIZE as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        moved.to(Device::Cpu)?;
        let download_rate = SIZE as f64 / start.elapsed().as_secs_f64();
        Ok(Self { rows_are_exact, agrees_with_cpu, upload_rate, download_rate })
    }
}

fn bytes(x: &Tensor) -> Result<Vec<u8>> {
    x.read_host(<[u8]>::to_vec)
}

/// Sums of 300 products of standard normal numbers are about 17; results are rounded
/// to the dtype once.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-4,
        DType::F16 => 0.1,
        _ => 0.6,
    }
}

fn largest_difference(expected: &Tensor, found: &Tensor) -> Result<f64, TensorError> {
    let (a, b) = (expected.cast(DType::F64)?.to_vec::<f64>()?, found.cast(DType::F64)?.to_vec::<f64>()?);
    // A NaN is the largest difference of all.
    Ok(a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |most, x| if x <= most { most } else { x }))
}
