//! Adam with decoupled weight decay.

use weightloom_tensor::{Tensor, TensorError};

use super::{Optimizer, StepInfo, exactly};

/// Adam with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// How slowly the means of gradients and of their squares forget.
    pub betas: [f64; 2],
    /// Keeps the division finite.
    pub eps: f64,
}

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let [mean, square] = exactly(self.name(), states)?;
        let rule = weightloom_tensor::AdamW {
            learning_rate: step.learning_rate,
            beta1: self.betas[0],
            beta2: self.betas[1],
            eps: self.eps,
            weight_decay: step.weight_decay,
            gradient_scale: step.gradient_scale,
        };
        rule.step_with(step.number, parameter, gradient, [mean, square])
    }
}
