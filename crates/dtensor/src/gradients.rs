//! Gradients of distributed tensors.

use std::sync::Arc;

use weightloom_tensor::{Gradients, Tape, Tensor};

use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::redistribute::{Axes, average_divisor, gradient_layout};

/// The gradients of distributed parameters.
#[derive(Clone, Debug, Default)]
pub struct DGradients(Gradients);

impl DGradients {
    /// The gradient of a parameter, in its layout; replicated where the parameter is
    /// a pending sum or average. For a pending maximum, minimum or product it is
    /// the gradient of this rank's share.
    pub fn of(&self, parameter: &DTensor) -> Option<Result<DTensor>> {
        let local = self.0.of(parameter.to_local())?;
        let wrap = || {
            let layout = gradient_layout(parameter.layout(), Axes::default())?;
            DTensor::from_local(parameter.dist(), local.clone(), layout, parameter.shape())
        };
        Some(wrap())
    }

    /// The gradients of local tensors.
    pub fn local(&self) -> &Gradients {
        &self.0
    }
}

/// Computes the gradients of outputs with respect to every parameter they depend
/// on. The gradient of an output defaults to ones. All ranks call this together.
pub fn backward(outputs: impl IntoIterator<Item = (DTensor, Option<DTensor>)>) -> Result<DGradients> {
    backward_with(outputs, Tape::Free)
}

/// As [`backward`], and says what stays of the tape.
///
/// With [`Tape::Retain`], each pass adds to the gradients that accumulate in trained
/// parameters. With [`Tape::Record`], differentiating a gradient whose operands were
/// redistributed is an error.
pub fn backward_with(
    outputs: impl IntoIterator<Item = (DTensor, Option<DTensor>)>,
    tape: Tape,
) -> Result<DGradients> {
    let mut locals = Vec::new();
    for (output, gradient) in outputs {
        let layout = gradient_layout(output.layout(), Axes::default())?;
        if output.layout().pending().any(|(_, op)| !op.is_linear()) {
            return Err(DTensorError::PendingOutput { layout: output.layout() });
        }
        let share = 1.0 / average_divisor(output.layout());
        let gradient = match gradient {
            Some(gradient) => {
                gradient.check_gradient_of("backward", &output)?;
                let moved = gradient.redistribute_for("backward", layout, gradient.nan_check())?;
                let local = moved.to_local().clone();
                if share == 1.0 { local } else { local.scale(share)? }
            }
            None => {
                let local = output.to_local();
                Tensor::full(share, local.dtype(), &[], local.device())?.expand(local.shape())?
            }
        };
        locals.push((output.to_local().clone(), Some(gradient)));
    }
    Ok(DGradients(weightloom_tensor::backward_with(locals, tape)?))
}

impl DTensor {
    /// Checks that this can be the gradient of a tensor; the result is the same on
    /// all ranks.
    pub(crate) fn check_gradient_of(&self, op: &'static str, tensor: &Self) -> Result<()> {
        if !Arc::ptr_eq(self.dist(), tensor.dist()) {
            return Err(DTensorError::Contexts { op });
        }
        if self.shape() == tensor.shape() && self.dtype() == tensor.dtype() {
            return Ok(());
        }
        Err(DTensorError::Gradient {
            op,
            found: self.shape().clone(),
            found_dtype: self.dtype(),
            expected: tensor.shape().clone(),
            expected_dtype: tensor.dtype(),
        })
    }
}
