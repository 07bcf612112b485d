//! Local tensors, their kernels, and a tape.
//!
//! A [`Tensor`] is a strided view of shared memory on one device. Operations
//! are methods; each is a [`Function`] with its own backward rule, and users
//! add theirs in one `impl`. [`backward`] runs the tape from any outputs with
//! given gradients and returns [`Gradients`].
//!
//! - Views (narrow, permute, expand, reshape) copy nothing where they can.
//! - Memory comes from a caching allocator with a budget; see [`memory`].
//! - [`Device::Meta`] computes shapes and [`counted`] costs without data, and a [`Meter`]
//!   what memory it would take.
//! - Results do not depend on the number of threads, nor a row's on its batch.
//! - [`recompute`] trades time for memory.
//!
//! This crate knows no ranks. It is the only one that names a compute backend.

pub mod memory;
pub mod threads;

mod adamw;
mod backend;
mod costs;
mod device;
mod element;
mod error;
mod host_memory;
mod kernels;
mod meter;
mod ops;
mod parallel;
mod random;
mod sgd;
mod storage;
mod tape;
mod tensor;
mod vectors;
mod view;

pub use adamw::{AdamW, Moments, global_norm};
pub use costs::{Cost, Costs, counted, uncounted};
pub use device::Device;
pub use element::{Element, Float};
pub use error::{Result, SharedError, TensorError};
pub use host_memory::HostMemory;
pub use kernels::order::Order;
pub use meter::Meter;
pub use ops::{Attention, CrossEntropy, RopeStyle};
pub use random::Stream;
pub use sgd::Sgd;
pub use tape::{Context, Function, Gradients, apply, backward, no_grad, recompute, recompute_over};
pub use tensor::Tensor;
pub use vectors::Level;
