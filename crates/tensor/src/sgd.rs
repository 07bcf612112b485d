//! Gradient descent with momentum, in one pass.

use crate::adamw::alike;
use crate::backend::on;
use crate::error::TensorError;
use crate::tensor::Tensor;

/// Gradient descent as PyTorch's `SGD` does it: weight decay is added to the
/// gradient, momentum adds up gradients without dampening.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The step size.
    pub learning_rate: f64,
    /// How slowly the running sum of gradients forgets.
    pub momentum: f64,
    /// The share of a parameter that is added to its gradient.
    pub weight_decay: f64,
    /// What gradients are multiplied by before anything else, such as the
    /// factor that clips them.
    pub gradient_scale: f64,
}

/// PyTorch's defaults.
impl Default for Sgd {
    fn default() -> Self {
        Self { learning_rate: 1e-3, momentum: 0.0, weight_decay: 0.0, gradient_scale: 1.0 }
    }
}

impl Sgd {
    /// One step in place. `buffer` is the running sum of gradients; it begins
    /// with zeros, which makes it the first gradient after the first step.
    /// Without one there is no momentum. All tensors have one dtype; the
    /// gradient of `f32` may also be of a half type. The parameter stays the
    /// same parameter; whoever else holds its old elements keeps those.
    pub fn step(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        buffer: Option<&mut Tensor>,
    ) -> Result<(), TensorError> {
        let device = match &buffer {
            None => alike("sgd", gradient, &[&*parameter])?,
            Some(buffer) => alike("sgd", gradient, &[&*parameter, &**buffer])?,
        };
        on(device).sgd(self, &gradient.contiguous("sgd")?, parameter, buffer)
    }
}
