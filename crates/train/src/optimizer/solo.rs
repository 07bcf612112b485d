//! Distributed update rules on a single rank.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, DTensorError, DistContext, DistOptions};
use weightloom_gang::{GangOptions, solo};
use weightloom_layout::{Layout, Mesh};
use weightloom_tensor::{Device, Tensor, TensorError};

use super::{DistributedUpdate, StepInfo};

/// Updates a parameter that this rank holds whole.
pub(super) fn step_alone(
    name: &'static str,
    rule: &dyn DistributedUpdate,
    step: &StepInfo,
    parameter: &mut Tensor,
    gradient: &Tensor,
    states: &mut [Tensor],
) -> Result<(), TensorError> {
    let distributed = |error: DTensorError| match error {
        DTensorError::Tensor(error) => error,
        error => TensorError::from_function(name, error),
    };
    let (dist, layout) = alone(parameter.device()).map_err(distributed)?;
    let whole = |tensor: &Tensor| DTensor::from_local(&dist, tensor.clone(), layout, tensor.shape());
    let gradient = whole(gradient).map_err(distributed)?;
    let mut held = whole(parameter).map_err(distributed)?;
    // Not shared with the original, which would cost a copy.
    *parameter = Tensor::full(0.0, parameter.dtype(), &[], parameter.device())?;
    let done = rule.update(step, &mut held, &gradient, states).map_err(distributed);
    *parameter = held.to_local().clone();
    done
}

/// A context of one rank.
fn alone(device: Device) -> Result<(Arc<DistContext>, Layout), DTensorError> {
    let layout = Layout::replicated(Mesh::new(&[("rank", 1)])?);
    let options = DistOptions { device, ..DistOptions::default() };
    let dist = match device {
        Device::Meta => DistContext::dry_run(0, options),
        _ => DistContext::with_options(solo(GangOptions::default()), options),
    };
    Ok((dist, layout))
}
