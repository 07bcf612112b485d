//! What a device can do, as a trait: NVIDIA's driver, or a fake one.

use std::fmt;
use std::path::PathBuf;

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
    /// Bytes of shared memory that a block of threads can ask for.
    pub shared: u32,
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
    /// Bytes of shared memory that each block asks for when it is launched.
    pub shared: u32,
}

impl Grid {
    /// Blocks that ask for no shared memory.
    pub const fn new(blocks: [u32; 3], threads: u32) -> Self {
        Self { blocks, threads, shared: 0 }
    }

    /// The same with shared memory.
    #[must_use]
    pub const fn with_shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }
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

/// The dtypes of products that a library computes, with sums in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ProductDType {
    Bf16,
    F16,
}

/// The dtype of the result of a library's product, and of what is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductResult {
    /// That of the operands: sums are rounded once.
    Rounded,
    /// That of the sums.
    F32,
}

/// Which elements of a matrix are neighbours in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// Those of a row.
    Rows,
    /// Those of a column.
    Columns,
}

/// The product of a `rows × depth` and a `depth × columns` matrix; the result is
/// contiguous by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct MatrixProduct {
    pub dtype: ProductDType,
    pub result: ProductResult,
    pub rows: u64,
    pub columns: u64,
    pub depth: u64,
    /// Of both operands.
    pub orientations: [Orientation; 2],
    /// Elements from one row, or column, of an operand to the next.
    pub strides: [u64; 2],
}

/// A library that computes products.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LibraryInfo {
    pub path: PathBuf,
    pub version: String,
}

/// A queue of work. What is queued on one stream is done in order; the two streams
/// run side by side, except where one [follows](Driver::follow) the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Kernels, products, and the copies that they wait for.
    Compute,
    /// Copies in the background.
    Copy,
}

/// A way between host and device. Each has its own pinned host memory, in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// To the device.
    Upload,
    /// To the host, after the work queued so far.
    Download,
    /// To the host, beside the work queued later.
    Background,
}

impl Lane {
    /// The stream that its copies are queued on.
    pub const fn stream(self) -> Stream {
        match self {
            Self::Upload | Self::Download => Stream::Compute,
            Self::Background => Stream::Copy,
        }
    }
}

/// The slots of each lane.
pub const SLOTS: usize = 4;

/// The bytes of a slot.
pub const SLOT_BYTES: usize = 2 << 20;

/// Pinned host memory of [`SLOT_BYTES`] bytes, with a mark in its lane's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Slot {
    pub lane: Lane,
    /// Less than [`SLOTS`].
    pub number: usize,
}

/// A device's driver. Copies and launches are queued in the order of the calls, and
/// the calls return at once, unless they say that they wait.
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

    /// Writes bytes of the host to a slot, from `at`.
    fn stage(&self, slot: Slot, at: usize, bytes: &[u8]) -> Result<(), CudaError>;

    /// Reads the first bytes of a slot.
    fn unstage(&self, slot: Slot, bytes: &mut [u8]) -> Result<(), CudaError>;

    /// Queues a copy to the device of bytes of a slot, from `at`.
    fn upload(&self, to: u64, slot: Slot, at: usize, bytes: usize) -> Result<(), CudaError>;

    /// Queues a copy from the device to the first bytes of a slot.
    fn download(&self, from: u64, slot: Slot, bytes: usize) -> Result<(), CudaError>;

    /// Sets the slot's mark after all work queued on its stream.
    fn mark(&self, slot: Slot) -> Result<(), CudaError>;

    /// Waits until the slot's mark is reached. Returns at once if there is none.
    fn wait(&self, slot: Slot) -> Result<(), CudaError>;

    /// Makes later work of the copy stream wait for the work queued on the compute
    /// stream so far.
    fn follow(&self) -> Result<(), CudaError>;

    /// Sets bytes.
    fn set(&self, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError>;

    /// Copies bytes within the device.
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError>;

    /// Queues a kernel.
    fn launch(&self, kernel: &str, grid: Grid, args: &[Arg<'_>]) -> Result<(), CudaError>;

    /// The library of products, or why there is none.
    fn library(&self) -> Result<LibraryInfo, CudaError>;

    /// Queues a product: result, both operands, and a matrix that is added (0 for
    /// none). Returns whether the library has an algorithm for it.
    fn product(&self, product: &MatrixProduct, addresses: [u64; 4]) -> Result<bool, CudaError>;

    /// Queues a stamp of the time on the compute stream: its number.
    fn stamp(&self) -> Result<u64, CudaError>;

    /// Forgets all stamps, and queues the first of new ones.
    fn restart_stamps(&self) -> Result<u64, CudaError>;

    /// Seconds between two stamps, which have been reached.
    fn seconds_between(&self, first: u64, second: u64) -> Result<f64, CudaError>;

    /// Waits for all work queued on the compute stream, and returns its errors.
    fn synchronize(&self) -> Result<(), CudaError>;
}
