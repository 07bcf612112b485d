//! The kernels that every device must have.
//!
//! Operations check shapes and dtypes, arrange views, and know their backward
//! rules; they reach data only through [`Backend`]. Each family of operations
//! declares its kernels as a trait in [`kernels`](crate::kernels), beside their
//! implementations for the CPU and for the meta device. A further device
//! implements the same traits, and no operation changes.
//!
//! Unless a kernel says otherwise, tensors come contiguous, on one device and
//! with fitting shapes, and a result is contiguous. A kernel may overwrite the
//! memory of operands that it takes by value, if nothing else uses it.

pub(crate) mod meta;

use crate::cuda::GPUS;
use crate::device::Device;
use crate::kernels::attention::AttentionKernels;
use crate::kernels::comparison::ComparisonKernels;
use crate::kernels::copy::CopyKernels;
use crate::kernels::cross_entropy::CrossEntropyKernels;
use crate::kernels::elementwise::ElementwiseKernels;
use crate::kernels::index::IndexKernels;
use crate::kernels::matmul::MatmulKernels;
use crate::kernels::norm::NormKernels;
use crate::kernels::random::RandomKernels;
use crate::kernels::reduce::ReduceKernels;
use crate::kernels::rope::RopeKernels;
use crate::kernels::softmax::SoftmaxKernels;
use crate::kernels::sort::SortKernels;
use crate::optim::OptimizerKernels;

/// The kernels of a device.
pub(crate) fn on(device: Device) -> &'static dyn Backend {
    match device {
        Device::Cpu => &Cpu,
        Device::Meta => &Meta,
        Device::Cuda(ordinal) => &GPUS[usize::from(ordinal)],
    }
}

/// This process's CPU.
pub(crate) struct Cpu;

/// No memory: shapes, dtypes and costs.
pub(crate) struct Meta;

/// All kernels of a device, by family.
pub(crate) trait Backend:
    AttentionKernels
    + ComparisonKernels
    + CopyKernels
    + CrossEntropyKernels
    + ElementwiseKernels
    + IndexKernels
    + MatmulKernels
    + NormKernels
    + RandomKernels
    + ReduceKernels
    + RopeKernels
    + SoftmaxKernels
    + SortKernels
    + OptimizerKernels
    + Sync
{
}

impl Backend for Cpu {}

impl Backend for Meta {}
