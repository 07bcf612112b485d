//! Optimizer updates, and the norm that gradients are clipped by.

use weightloom_cuda::Arg;
use weightloom_layout::DType;

use super::reduce::Addend;
use super::{Cuda, Reused, address, bytes, count, each, suffix};
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::optim::{DeviceUpdate, OptimizerKernels, UpdateKernel};
use crate::tensor::Tensor;

impl Cuda {
    /// The memory for the new values of a tensor: its own unless that is shared.
    fn renewed(self, op: &'static str, x: &mut Tensor) -> Result<Reused> {
        if x.is_unique_and_contiguous() {
            // A second reference only until the kernel is queued.
            return Ok(Reused { source: address(op, x)?, out: x.clone(), _kept: None });
        }
        self.reuse(op, x.detach())
    }

    /// An update without a kernel for GPUs: computed by the host.
    fn update_on_host(
        self,
        kernel: &dyn UpdateKernel,
        gradient: &Tensor,
        parameter: &mut Tensor,
        states: &mut [&mut Tensor],
    ) -> Result<()> {
        let gradient = gradient.to(Device::Cpu)?;
        let mut host_parameter = parameter.detach().to(Device::Cpu)?;
        let mut host_states =
            states.iter().map(|state| state.detach().to(Device::Cpu)).collect::<Result<Vec<_>>>()?;
        let mut changed: Vec<&mut Tensor> = host_states.iter_mut().collect();
        kernel.run(&gradient, &mut host_parameter, &mut changed)?;
        // All or nothing: memory may run out in between.
        let device = Device::Cuda(self.0);
        let new_states = host_states.iter().map(|state| state.to(device)).collect::<Result<Vec<_>>>()?;
        *parameter = host_parameter.to(device)?.with_origin(parameter.origin().clone());
        for (state, new) in states.iter_mut().zip(new_states) {
            **state = new;
        }
        Ok(())
    }
}

impl OptimizerKernels for Cuda {
    fn update(
        &self,
        kernel: &dyn UpdateKernel,
        gradient: &Tensor,
        parameter: &mut Tensor,
        states: &mut [&mut Tensor],
    ) -> Result<()> {
        let Some(update) = kernel.on_device() else {
            return self.update_on_host(kernel, gradient, parameter, states);
        };
        let (op, n) = (kernel.name(), parameter.shape().volume());
        let pair = format!("{}_{}", suffix(parameter.dtype()), suffix(gradient.dtype()));
        let new_parameter = self.renewed(op, parameter)?;
        let new_states =
            states.iter_mut().map(|state| self.renewed(op, state)).collect::<Result<Vec<_>>>()?;
        let mut args = vec![address(op, &new_parameter.out)?];
        let (name, expected) = match &update {
            DeviceUpdate::AdamW(_) => ("adamw", 2),
            DeviceUpdate::Sgd(_) => ("sgd", new_states.len().min(1)),
        };
        if new_states.len() != expected {
            return Err(TensorError::StateCount { op, expected, found: new_states.len() });
        }
        let none = if name == "sgd" && new_states.is_empty() { 1 } else { 0 };
        for state in &new_states {
            args.push(address(op, &state.out)?);
        }
        args.extend(std::iter::repeat_n(Arg::Null, none));
        args.push(new_parameter.source);
        args.extend(new_states.iter().map(|state| state.source));
        args.extend(std::iter::repeat_n(Arg::Null, none));
        args.extend([address(op, gradient)?, count(n)]);
        args.push(match &update {
            DeviceUpdate::AdamW(constants) => bytes(constants),
            DeviceUpdate::Sgd(constants) => bytes(constants),
        });
        self.launch(&format!("{name}_{pair}"), each(n), n, &args)?;
        let origin = parameter.origin().clone();
        *parameter = new_parameter.out.with_origin(origin);
        for (state, new) in states.iter_mut().zip(new_states) {
            **state = new.out;
        }
        Ok(())
    }

    /// The sums of pieces are added by the host, in order, in `f64` as on the CPU.
    fn squares(&self, tensors: &[Tensor]) -> Result<Vec<f64>> {
        let pieces_of = |x| self.sums_of_pieces("global_norm", x, Addend::Squares)?.cast(DType::F64);
        let pieces = tensors.iter().map(pieces_of).collect::<Result<Vec<_>>>()?;
        let all = Tensor::cat(&pieces.iter().collect::<Vec<_>>(), 0)?.to_vec::<f64>()?;
        let mut rest = all.as_slice();
        let sum_of = |part: &Tensor| {
            let (own, after) = rest.split_at(part.shape().volume());
            rest = after;
            own.iter().sum()
        };
        Ok(pieces.iter().map(sum_of).collect())
    }
}
