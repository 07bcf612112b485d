//! Local tensors, kernels for CPUs and NVIDIA GPUs, and reverse-mode automatic differentiation.
//!
//! A [`Tensor`] is a strided view of shared memory on one device. Operations are
//! methods; each is a [`Function`] with a backward rule, and users add their own
//! functions. [`backward`] differentiates any outputs and returns [`Gradients`].
//!
//! - Views (narrow, permute, expand, reshape) copy nothing where they can.
//! - Memory comes from a caching allocator with a budget: [`memory`].
//! - [`Device::Meta`] computes shapes without data; [`counted`] counts flops and
//!   bytes, and a [`Meter`] memory.
//! - [`Tensor::to`] moves to a GPU and back; [`gpus`] lists those there are.
//! - Results do not depend on the number of threads, nor a row on its batch.
//! - [`recompute`] is activation checkpointing.
//!
//! Only this crate knows compute backends. It knows nothing about ranks.

pub mod memory;
pub mod threads;

mod backend;
mod costs;
mod cuda;
mod device;
mod device_choice;
mod element;
mod error;
mod gpu;
mod host_memory;
mod kernels;
mod meter;
mod ops;
mod optim;
mod parallel;
mod profile;
mod random;
mod storage;
mod tape;
mod tensor;
mod vectors;
mod view;

pub use costs::{Cost, Costs, counted, uncounted};
pub use cuda::ProductLibrary;
pub use device::{Device, UnknownDevice};
pub use device_choice::{ChosenDevice, DeviceChoice};
pub use element::{Element, Float, Wide};
pub use error::{Result, SharedError, TensorError};
pub use gpu::{GpuFacts, SelfTest, gpus, product_library};
pub use host_memory::HostMemory;
pub use kernels::sort::Order;
pub use meter::Meter;
pub use ops::{Attention, CrossEntropy, RopeStyle};
pub use optim::{
    AdamW, AdamWConstants, DeviceUpdate, Moments, Sgd, SgdConstants, UpdateRule, fused_update, global_norm,
    scalar, sums_of_squares,
};
pub use profile::{WorkSpan, begin_profile, end_profile};
pub use random::Stream;
pub use tape::{
    Context, DoubleGradients, Function, Gradients, Tape, apply, backward, backward_with, catch_panic,
    no_grad, recompute, recompute_over,
};
pub use tensor::Tensor;
pub use vectors::Level;
pub use weightloom_cuda::KernelCode;
