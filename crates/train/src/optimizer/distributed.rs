//! Updates of distributed parameters.

use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_tensor::Tensor;

use super::{Optimizer, StepInfo};

/// An update rule that needs more of a parameter than the shard of one rank, such as
/// its norm.
pub trait DistributedUpdate: Send + Sync {
    /// Updates this rank's shard of a parameter, and its states. Called by all ranks
    /// that hold the parameter.
    fn update(
        &self,
        step: &StepInfo,
        parameter: &mut DTensor,
        gradient: &DTensor,
        states: &mut [Tensor],
    ) -> Result<(), DTensorError>;
}

/// The weights that are evaluated, and saved as the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluatedWeights {
    /// Those that gradients are computed for.
    Trained,
    /// An [average](Optimizer::average) of them. The trained ones are saved for
    /// resuming.
    Averaged,
}

/// Updates this rank's shard of a parameter. Called by all ranks that hold the
/// parameter.
pub(crate) fn update(
    optimizer: &dyn Optimizer,
    step: &StepInfo,
    parameter: &mut DTensor,
    gradient: &DTensor,
    states: &mut [Tensor],
) -> Result<(), DTensorError> {
    match optimizer.distributed() {
        Some(rule) => rule.update(step, parameter, gradient, states),
        None => parameter.change_local(|local| optimizer.step(step, local, gradient.to_local(), states)),
    }
}

/// The weights of a parameter to evaluate, if they are not the trained ones.
pub(crate) fn evaluated(
    optimizer: &dyn Optimizer,
    parameter: &DTensor,
    states: &[Tensor],
) -> Result<Option<DTensor>, DTensorError> {
    match optimizer.evaluated() {
        EvaluatedWeights::Trained => Ok(None),
        EvaluatedWeights::Averaged => {
            let average = optimizer.average(&parameter.to_local().detach(), states)?;
            DTensor::from_local(parameter.dist(), average, parameter.layout(), parameter.shape()).map(Some)
        }
    }
}
