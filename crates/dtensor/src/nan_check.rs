//! Finding the operation that first gives an infinity or a NaN.

use std::sync::{Arc, Mutex};

use weightloom_layout::DType;
use weightloom_tensor::{Device, Tensor, no_grad};

use crate::comm_log::Pass;
use crate::dist_context::locked;
use crate::error::{DTensorError, Result};

/// Checks that the results of operations are finite, in the forward pass and,
/// where gradients are redistributed, in the backward pass.
///
/// A check belongs to tensors: results of operations on a tensor
/// [with a check](crate::DTensor::with_nan_check) are checked and carry it on.
/// Every result is read once more, which takes time.
#[derive(Debug)]
pub struct NanCheck {
    action: Action,
    state: Mutex<State>,
}

#[derive(Debug)]
enum Action {
    Fail,
    Record,
}

#[derive(Debug, Default)]
struct State {
    module: String,
    first: Option<NonFinite>,
}

/// The first result that was not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFinite {
    /// The module that was [entered](NanCheck::enter_module) last; may be empty.
    pub module: String,
    /// The operation, pass, rank, shape and dtype.
    pub error: DTensorError,
}

impl NanCheck {
    /// A check that makes the first operation with a non-finite result an error.
    pub fn failing() -> Arc<Self> {
        Arc::new(Self { action: Action::Fail, state: Mutex::default() })
    }

    /// A check that records the first non-finite result for
    /// [`take_first`](Self::take_first), while all ranks continue.
    pub fn recording() -> Arc<Self> {
        Arc::new(Self { action: Action::Record, state: Mutex::default() })
    }

    /// Names the module of a model that the next operations belong to.
    pub fn enter_module(&self, module: &str) {
        module.clone_into(&mut locked(&self.state).module);
    }

    /// Takes the first non-finite result that was recorded.
    pub fn take_first(&self) -> Option<NonFinite> {
        locked(&self.state).first.take()
    }

    pub(crate) fn check(&self, rank: usize, op: &'static str, pass: Pass, local: &Tensor) -> Result<()> {
        if !local.dtype().is_float() || local.device() == Device::Meta {
            return Ok(());
        }
        // `x - x` is zero only for finite `x`.
        let sum = no_grad(|| {
            let wide = local.detach().cast(DType::F64)?;
            wide.sub(&wide)?.sum_all()?.item::<f64>()
        })?;
        if sum == 0.0 {
            return Ok(());
        }
        let (shape, dtype) = (local.shape().clone(), local.dtype());
        let error = DTensorError::NotFinite { op, pass, rank, local: shape, dtype };
        match self.action {
            Action::Fail => Err(error),
            Action::Record => {
                let state = &mut *locked(&self.state);
                let module = state.module.clone();
                state.first.get_or_insert(NonFinite { module, error });
                Ok(())
            }
        }
    }
}
