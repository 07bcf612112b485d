//! What a device can do, as a trait: NVIDIA's driver, or a fake one.

use std::fmt;

use crate::error::CudaError;

/// Facts about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DeviceInfo {
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Bytes of memory.
    pub memory: usize,
    pub multiprocessors: u32,
    /// The CUDA version that the driver supports: 13000 is 13.0.
    pub driver_version: u32,
}

/// The blocks and threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg<'a> {
    /// An address in device memory.
    Address(u64),
    /// No memory.
    Null,
    /// `uint64_t`.
    U64(u64),
    /// `int64_t`.
    I64(i64),
    /// `int`.
    I32(i32),
    /// `double`.
    F64(f64),
    /// A struct.
    Bytes(&'a [u8]),
}

/// A device's driver. Copies and launches are queued in the order of the calls;
/// uploads and downloads wait until they are done.
///
/// Addresses are numbers of device memory, which no reference of this program points
/// to: a wrong one can end the device's work with an error, but not change memory of
/// the host.
pub trait Driver: fmt::Debug + Send + Sync {
    /// Facts about the device.
    fn info(&self) -> &DeviceInfo;

    /// Bytes that are free, and all bytes.
    fn memory(&self) -> Result<(usize, usize), CudaError>;

    /// Takes memory from the device. `None` if there is too little.
    fn allocate(&self, bytes: usize) -> Result<Option<u64>, CudaError>;

    /// Returns memory, after all queued work.
    fn free(&self, address: u64);

    /// Copies bytes to the device.
    fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError>;

    /// Copies bytes from the device, after all queued work.
    fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), CudaError>;

    /// Sets bytes.
    fn set(&self, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError>;

    /// Copies bytes within the device.
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError>;

    /// Queues a kernel.
    fn launch(&self, kernel: &str, grid: Grid, args: &[Arg<'_>]) -> Result<(), CudaError>;

    /// Waits for all queued work, and returns its errors.
    fn synchronize(&self) -> Result<(), CudaError>;
}
