//! Gradients of distributed tensors.

use shardloom_layout::ReduceOp;
use shardloom_tensor::{Gradients, Tensor};

use crate::dtensor::DTensor;
use crate::error::DTensorError;
use crate::moves::{Axes, gradient_layout};

/// The gradients of distributed parameters.
#[derive(Clone, Debug, Default)]
pub struct DGradients(Gradients);

impl DGradients {
    /// The gradient of a parameter. It is distributed as the parameter is,
    /// and replicated where that has pending values.
    pub fn of(&self, parameter: &DTensor) -> Option<Result<DTensor, DTensorError>> {
        let local = self.0.of(parameter.to_local())?;
        let wrap = || {
            let layout = gradient_layout(parameter.layout(), Axes::default())?;
            DTensor::from_local(parameter.ranks(), local.clone(), layout, parameter.shape())
        };
        Some(wrap())
    }

    /// The gradients of local tensors.
    pub fn local(&self) -> &Gradients {
        &self.0
    }
}

/// Gradients of all parameters that outputs depend on, from given gradients of
/// the outputs, or from ones. All ranks call this together.
pub fn backward(
    outputs: impl IntoIterator<Item = (DTensor, Option<DTensor>)>,
) -> Result<DGradients, DTensorError> {
    let mut locals = Vec::new();
    for (output, gradient) in outputs {
        let layout = gradient_layout(output.layout(), Axes::default())?;
        let nonlinear = |op| !matches!(op, ReduceOp::Sum | ReduceOp::Avg);
        if output.layout().pending().any(|(_, op)| nonlinear(op)) {
            return Err(DTensorError::NotDifferentiable { layout: output.layout() });
        }
        let share: f64 = output
            .layout()
            .pending()
            .filter(|(_, op)| *op == ReduceOp::Avg)
            .map(|(axis, _)| 1.0 / output.layout().mesh().axis_size(axis) as f64)
            .product();
        let gradient = match gradient {
            Some(gradient) => {
                let local = gradient.moved("backward", layout)?.to_local().detach();
                if share == 1.0 { local } else { local.scale(share)? }
            }
            None => {
                let local = output.to_local();
                Tensor::full(share, local.dtype(), &[], local.device())?.expand(local.shape())?
            }
        };
        locals.push((output.to_local().clone(), Some(gradient)));
    }
    Ok(DGradients(shardloom_tensor::backward(locals)?))
}
