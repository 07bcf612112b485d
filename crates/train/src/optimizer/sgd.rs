//! Gradient descent with momentum, as PyTorch's `SGD` does it.

use weightloom_tensor::{Tensor, TensorError};

use super::{Optimizer, StepInfo, exactly};

/// Gradient descent. Weight decay is a part of the gradient, so momentum
/// carries it on, unlike AdamW's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// How slowly the running sum of gradients forgets; with 0 none is kept.
    pub momentum: f64,
}

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn states(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let buffer = if self.momentum == 0.0 {
            let [] = exactly(self.name(), states)?;
            None
        } else {
            let [buffer] = exactly(self.name(), states)?;
            Some(buffer)
        };
        let rule = weightloom_tensor::Sgd {
            learning_rate: step.learning_rate,
            momentum: self.momentum,
            weight_decay: step.weight_decay,
            gradient_scale: step.gradient_scale,
        };
        rule.step(parameter, gradient, buffer)
    }
}
