//! Panics of users' functions as errors.

use weightloom_errors::{Panicked, caught};

use super::{Context, DoubleGradients, Function};
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// Runs a method of a user's function. A panic is an error that names both.
///
/// The state that a panic may leave half changed is the function's own: this crate
/// shares none with it.
pub fn catch_panic<T>(function: &'static str, method: &'static str, work: impl FnOnce() -> T) -> Result<T> {
    caught(work).map_err(|Panicked { message }| TensorError::Panicked { function, method, message })
}

/// A user's function, whose panics are errors.
pub(super) struct PanicGuard<F>(pub(super) F);

impl<F: Function> Function for PanicGuard<F> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        catch_panic(self.name(), "forward", || self.0.forward(context, inputs))?
    }

    fn is_cheap(&self) -> bool {
        self.0.is_cheap()
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        catch_panic(self.name(), "backward", || self.0.backward(context, gradients))?
    }

    fn is_linear(&self, context: &Context) -> bool {
        self.0.is_linear(context)
    }

    fn double_backward(
        &self,
        context: Context,
        of_outputs: Vec<Option<Tensor>>,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<DoubleGradients> {
        catch_panic(self.name(), "double_backward", || {
            self.0.double_backward(context, of_outputs, gradients)
        })?
    }
}
