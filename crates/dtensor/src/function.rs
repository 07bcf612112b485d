//! User functions on distributed tensors.

use weightloom_tensor::{Function, Tensor, apply as apply_local};

use crate::dispatch::{Op, Scope, dispatch};
use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::registry::LocalCall;

/// A differentiable function on local tensors that also applies to distributed
/// tensors.
///
/// `forward` and `backward` of [`Function`] receive local tensors. The sharding
/// rule registered for [`op_name`](Self::op_name) gives the layouts of distributed
/// operands and results.
pub trait DFunction: Function + Clone {
    /// The name of the operation whose sharding rule applies.
    fn op_name(&self) -> Option<&'static str> {
        None
    }

    /// Values besides shapes and layouts that the rule depends on.
    fn arguments(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// An operand or a result, local or distributed.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor of this process.
    Local(Tensor),
    /// A tensor distributed over ranks.
    Distributed(DTensor),
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Local(tensor)
    }
}

impl From<DTensor> for Value {
    fn from(tensor: DTensor) -> Self {
        Self::Distributed(tensor)
    }
}

impl Value {
    /// The tensor, if it is local.
    pub fn local(self) -> Option<Tensor> {
        match self {
            Self::Local(tensor) => Some(tensor),
            Self::Distributed(_) => None,
        }
    }

    /// The tensor, if it is distributed.
    pub fn distributed(self) -> Option<DTensor> {
        match self {
            Self::Local(_) => None,
            Self::Distributed(tensor) => Some(tensor),
        }
    }
}

/// Applies a function to local or distributed tensors.
///
/// With a distributed operand, the function runs on local tensors in the layouts
/// that the sharding rule of its operation chooses. Local operands then count as
/// replicated: every rank must pass the same.
pub fn apply(function: &impl DFunction, operands: &[Value]) -> Result<Vec<Value>> {
    let first = operands.iter().find_map(|operand| match operand {
        Value::Distributed(tensor) => Some(tensor),
        Value::Local(_) => None,
    });
    let Some(first) = first else {
        let locals: Vec<Tensor> = operands.iter().cloned().filter_map(Value::local).collect();
        return Ok(apply_local(function.clone(), &locals)?.into_iter().map(Value::from).collect());
    };
    let Some(name) = function.op_name() else {
        return Err(DTensorError::UnnamedOp { function: function.name() });
    };
    let replicated = weightloom_layout::Layout::replicated(first.layout().mesh());
    let inputs: Vec<DTensor> = operands
        .iter()
        .map(|operand| match operand {
            Value::Distributed(tensor) => Ok(tensor.clone()),
            Value::Local(tensor) => {
                DTensor::from_local(first.dist(), tensor.clone(), replicated, tensor.shape())
            }
        })
        .collect::<Result<_, _>>()?;
    let op = Op { name, arguments: &function.arguments() };
    let rule = first.dist().registry().get(name)?;
    let results = dispatch(&op, &inputs.iter().collect::<Vec<_>>(), &|locals, scope| {
        let replacement = match scope {
            Scope::Global => None,
            Scope::Local(decision) => {
                let (inputs, outputs) = decision.specs();
                let parts = LocalCall { dist: first.dist(), inputs: &inputs, outputs: &outputs };
                rule.replacement(&parts, locals)
            }
        };
        match replacement {
            Some(results) => results.map_err(|error| error.into_tensor_error(function.name())),
            None => apply_local(function.clone(), locals),
        }
    })?;
    Ok(results.into_iter().map(Value::from).collect())
}
