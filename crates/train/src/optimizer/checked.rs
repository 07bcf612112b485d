//! An optimizer of a user, checked at every step.

use std::collections::BTreeSet;

use weightloom_errors::Hint;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Device, Tensor, TensorError};

use super::{DistributedUpdate, EvaluatedWeights, Optimizer, PatternError, StateSpec, StepInfo};
use crate::extensions::caught;

/// An optimizer whose mistakes are errors that name it: a changed shape or dtype
/// would be saved, and a NaN would spoil all later steps.
pub(super) struct Checked(pub(super) Box<dyn Optimizer>);

impl Optimizer for Checked {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn states(&self) -> &'static [&'static str] {
        self.0.states()
    }

    fn states_of(&self, name: &str, shape: &Shape) -> Vec<StateSpec> {
        self.0.states_of(name, shape)
    }

    fn distributed(&self) -> Option<&dyn DistributedUpdate> {
        self.0.distributed()
    }

    fn evaluated(&self) -> EvaluatedWeights {
        self.0.evaluated()
    }

    fn average(&self, parameter: &Tensor, states: &[Tensor]) -> Result<Tensor, TensorError> {
        self.0.average(parameter, states)
    }

    fn check_names(&self, names: &BTreeSet<&str>) -> Result<(), PatternError> {
        self.0.check_names(names)
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let fault = |problem: OptimizerProblem| {
            let optimizer = self.name().to_owned();
            TensorError::from_function(self.name(), OptimizerFault { optimizer, step: step.number, problem })
        };
        let (wanted, is_parameter) = (form(parameter), parameter.is_parameter());
        let forms: Vec<String> = states.iter().map(form).collect();
        // Off the tape, and not shared with the original, which would cost a copy.
        let placeholder = Tensor::full(0.0, parameter.dtype(), &[], parameter.device())?;
        let mut changed = std::mem::replace(parameter, placeholder).detach();
        let done = caught(|| self.0.step(step, &mut changed, gradient, states));
        *parameter = if is_parameter { changed.requires_grad() } else { changed.detach() };
        drop(changed);
        done.map_err(|panic| fault(OptimizerProblem::Failed { reason: panic.to_string() }))?
            .map_err(|error| fault(OptimizerProblem::Failed { reason: error.to_string() }))?;
        let names = self.states().iter().map(|name| format!("state `{name}`"));
        let kept = names.zip(states.iter_mut()).zip(forms);
        for ((what, tensor), wanted) in kept {
            *tensor = tensor.detach();
            check(what, tensor, &wanted).map_err(fault)?;
        }
        check("parameter".to_owned(), parameter, &wanted).map_err(fault)
    }
}

/// The dtype and shape of a tensor.
fn form(tensor: &Tensor) -> String {
    format!("{} {}", tensor.dtype(), tensor.shape())
}

fn check(what: String, tensor: &Tensor, wanted: &str) -> Result<(), OptimizerProblem> {
    let found = form(tensor);
    if found != wanted {
        return Err(OptimizerProblem::Form { what, wanted: wanted.to_owned(), found });
    }
    // A dry run has no values.
    if tensor.device() == Device::Meta {
        return Ok(());
    }
    // `x - x` is zero only for finite `x`.
    let tensor = tensor.detach();
    let difference = || tensor.sub(&tensor)?.sum_all()?.cast(DType::F64)?.item::<f64>();
    match difference() {
        Ok(0.0) => Ok(()),
        Ok(_) => Err(OptimizerProblem::NotFinite { what }),
        Err(error) => Err(OptimizerProblem::Failed { reason: error.to_string() }),
    }
}

/// A step in which an optimizer of a user failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {step}: the optimizer `{optimizer}` {problem}")]
#[allow(missing_docs)]
pub struct OptimizerFault {
    pub optimizer: String,
    pub step: u64,
    pub problem: OptimizerProblem,
}

/// What an optimizer of a user did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum OptimizerProblem {
    #[error("changed a {what} from {wanted} to {found}")]
    Form { what: String, wanted: String, found: String },
    #[error("wrote a NaN or infinity to a {what}")]
    NotFinite { what: String },
    #[error("failed: {reason}")]
    Failed { reason: String },
}

impl Hint for OptimizerFault {
    fn hint(&self) -> Option<String> {
        let hint = match &self.problem {
            OptimizerProblem::Form { .. } => {
                "keep shapes and dtypes: a step gets this rank's shards, not whole parameters"
            }
            OptimizerProblem::NotFinite { .. } => "lower `train.optimizer.lr`, or fix the optimizer",
            OptimizerProblem::Failed { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
