//! CUDA devices: the driver, device memory, and the table of kernels.
//!
//! The driver's library is loaded when a GPU is first asked for, so that one program
//! runs with and without a GPU and builds without CUDA's toolkit. Kernels are
//! compiled by `scripts/kernels` into one fatbin, which is part of the program.
//!
//! - [`Gpu`]: a device with its memory cache, copies and launches.
//! - [`DeviceBlock`]: memory of a device, returned to the cache when it is dropped.
//! - [`FakeDriver`]: a driver that records calls and checks addresses, for machines
//!   without a GPU.
//!
//! All work of a device is queued on one stream, in the order of the calls, except
//! downloads in the background, which the host waits for. So a block that is dropped
//! may be used again at once: what uses it next is queued after the work that still
//! reads it.
//!
//! ```
//! use weightloom_cuda::{FakeDriver, Gpu};
//!
//! let fake = FakeDriver::new();
//! let gpu = Gpu::with_driver(fake.clone());
//! let mut block = gpu.allocate(8)?;
//! gpu.upload(&mut block, &[1, 2, 3, 4, 5, 6, 7, 8])?;
//! let mut bytes = [0; 8];
//! gpu.download(&block, 0, &mut bytes)?;
//! assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
//! drop(block);
//! assert_eq!(gpu.statistics().in_use, 0);
//! # Ok::<(), weightloom_cuda::CudaError>(())
//! ```

mod cublaslt;
mod device;
mod driver;
mod error;
mod fake;
mod kernels;
mod library;
mod memory;
mod nvidia;
mod profile;
mod staging;

pub use cublaslt::ALIGNMENT as PRODUCT_ALIGNMENT;
pub use device::{Gpu, Poison, Products, count};
pub use driver::{
    Arg, DeviceInfo, Driver, Grid, Lane, LibraryInfo, MatrixProduct, Orientation, ProductDType,
    ProductResult, SLOT_BYTES, SLOTS, Slot, Stream,
};
pub use error::CudaError;
pub use fake::{FakeDriver, FakeLibrary, Recorded};
pub use kernels::{KERNELS, KernelCode, kernel_code, names};
pub use memory::{DeviceBlock, Statistics};
pub use profile::Span;
