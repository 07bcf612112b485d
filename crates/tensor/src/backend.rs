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

use crate::adamw::Step;
use crate::device::Device;
use crate::element::{with_float, with_gradient};
use crate::error::{Result, TensorError};
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
use crate::kernels::{adamw, sgd};
use crate::sgd::Sgd;
use crate::tensor::Tensor;
use meta::{record, volume};

/// The kernels of a device.
pub(crate) fn on(device: Device) -> &'static dyn Backend {
    match device {
        Device::Cpu => &Cpu,
        Device::Meta => &Meta,
    }
}

/// This process's CPU.
pub(crate) struct Cpu;

/// No memory: shapes, dtypes and costs.
pub(crate) struct Meta;

/// All kernels of a device, by family, and those of optimizers.
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
    + Sync
{
    /// One AdamW step in place.
    fn adamw(&self, step: &Step, gradient: &Tensor, state: [&mut Tensor; 3]) -> Result<()>;

    /// One step of gradient descent in place, with momentum if there is a
    /// running sum of gradients.
    fn sgd(
        &self,
        step: &Sgd,
        gradient: &Tensor,
        parameter: &mut Tensor,
        buffer: Option<&mut Tensor>,
    ) -> Result<()>;

    /// The sum of squares. Waits for the result.
    fn squares(&self, x: &Tensor) -> Result<f64>;
}

impl Backend for Cpu {
    fn adamw(&self, step: &Step, gradient: &Tensor, state: [&mut Tensor; 3]) -> Result<()> {
        with_gradient!("adamw", state[0].dtype(), gradient.dtype(), (T, G) => {
            adamw::adamw::<T, G>(step, gradient, state)
        })
    }

    fn sgd(
        &self,
        step: &Sgd,
        gradient: &Tensor,
        parameter: &mut Tensor,
        buffer: Option<&mut Tensor>,
    ) -> Result<()> {
        with_gradient!("sgd", parameter.dtype(), gradient.dtype(), (T, G) => {
            sgd::sgd::<T, G>(step, gradient, parameter, buffer)
        })
    }

    fn squares(&self, x: &Tensor) -> Result<f64> {
        with_float!("global_norm", x.dtype(), T => adamw::squares::<T>(x))
    }
}

impl Backend for Meta {
    fn adamw(&self, _: &Step, gradient: &Tensor, [p, m, v]: [&mut Tensor; 3]) -> Result<()> {
        record("adamw", 14 * volume(gradient.shape()), &[gradient, p, m, v], &[p, m, v]);
        Ok(())
    }

    fn sgd(
        &self,
        _: &Sgd,
        gradient: &Tensor,
        parameter: &mut Tensor,
        buffer: Option<&mut Tensor>,
    ) -> Result<()> {
        let elements = volume(gradient.shape());
        match buffer {
            None => record("sgd", 5 * elements, &[gradient, parameter], &[parameter]),
            Some(buffer) => {
                record("sgd", 7 * elements, &[gradient, parameter, buffer], &[parameter, buffer]);
            }
        }
        Ok(())
    }

    fn squares(&self, x: &Tensor) -> Result<f64> {
        Err(TensorError::NoData { op: "global_norm", shape: x.shape().clone() })
    }
}
