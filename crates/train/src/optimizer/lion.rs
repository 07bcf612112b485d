//! Lion: the sign of a momentum, with decoupled weight decay.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_layout::DType;
use weightloom_tensor::{Device, Tensor, TensorError, UpdateRule, Wide, fused_update, scalar};

use super::options::{betas, problems};
use super::{Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, StepInfo, exactly};
use crate::extensions::OptionProblem;

/// Lion (Chen et al. 2023). All elements move by the learning rate, so it is usually a
/// third to a tenth of AdamW's, and the weight decay so many times larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// How slowly the direction and the momentum forget.
    pub betas: [f64; 2],
}

impl Optimizer for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let [momentum] = exactly(self.name(), states)?;
        let rule = LionStep {
            betas: self.betas,
            decay: 1.0 - step.learning_rate * step.weight_decay,
            learning_rate: step.learning_rate,
            scale: step.gradient_scale,
        };
        match parameter.device() {
            Device::Cpu | Device::Meta => fused_update(rule, parameter, gradient, [momentum]),
            // The fused rule has no kernel for GPUs.
            _ => rule.by_operations(parameter, gradient, momentum),
        }
    }
}

/// The constants of one step.
#[derive(Clone, Copy, Debug)]
struct LionStep {
    betas: [f64; 2],
    /// Factor of the parameter by weight decay.
    decay: f64,
    learning_rate: f64,
    scale: f64,
}

impl LionStep {
    /// The same rule, one operation after another.
    fn by_operations(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        momentum: &mut Tensor,
    ) -> Result<(), TensorError> {
        let is_parameter = parameter.is_parameter();
        let old = parameter.detach();
        let gradient = gradient.detach().cast(old.dtype())?.scale(self.scale)?;
        let blend = |beta: f64| momentum.scale(beta)?.add(&gradient.scale(1.0 - beta)?);
        let direction = blend(self.betas[0])?;
        let zero = Tensor::full(0.0, direction.dtype(), &[], direction.device())?;
        let sign = |bools: Tensor| bools.cast(DType::F32)?.cast(old.dtype());
        let sign = sign(direction.gt(&zero)?)?.sub(&sign(direction.lt(&zero)?)?)?;
        let new = old.scale(self.decay)?.sub(&sign.scale(self.learning_rate)?)?;
        let next = blend(self.betas[1])?;
        *momentum = next;
        *parameter = if is_parameter { new.requires_grad() } else { new };
        Ok(())
    }
}

impl UpdateRule<1> for LionStep {
    const NAME: &'static str = "lion";
    const FLOPS: u64 = 11;

    #[inline(always)]
    fn update<W: Wide>(&self, parameter: W, gradient: W, [momentum]: [W; 1]) -> (W, [W; 1]) {
        let gradient = gradient * scalar(self.scale);
        let blend = |beta: f64| momentum * scalar(beta) + gradient * scalar(1.0 - beta);
        let direction = blend(self.betas[0]);
        // Unlike `signum`, zero for zero: such elements stay.
        let sign = if direction > W::zero() {
            W::one()
        } else if direction < W::zero() {
            -W::one()
        } else {
            W::zero()
        };
        (parameter * scalar(self.decay) - sign * scalar(self.learning_rate), [blend(self.betas[1])])
    }
}

#[derive(Debug)]
pub(super) struct LionFactory;

/// Options of `lion`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LionOptions {
    /// Decay rates of the direction of a step, and of the momentum.
    betas: [f64; 2],
}

impl Default for LionOptions {
    fn default() -> Self {
        Self { betas: [0.9, 0.99] }
    }
}

impl OptimizerFactory for LionFactory {
    type Options = LionOptions;

    fn name(&self) -> &'static str {
        "lion"
    }

    fn summary(&self) -> &'static str {
        "Lion: the sign of a momentum, with decoupled weight decay."
    }

    fn problems(&self, options: &LionOptions) -> Vec<OptionProblem> {
        problems(betas(options.betas))
    }

    fn build(&self, _: &OptimizerConfig, options: LionOptions) -> Result<Box<dyn Optimizer>, OptimizerError> {
        Ok(Box::new(Lion { betas: options.betas }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn operations_compute_what_the_fused_rule_does() {
        let rule = LionStep { betas: [0.9, 0.99], decay: 0.999, learning_rate: 0.01, scale: 0.5 };
        let tensor = |factor: f64| {
            let x: Vec<f64> =
                (0..40).map(|at| ((f64::from(at) * factor).sin() * 8.0).round() / 8.0).collect();
            Tensor::from_slice(&x, &[40]).unwrap()
        };
        let (mut one, mut other) = (tensor(0.3), tensor(0.3).requires_grad());
        let (mut first, mut second) = (tensor(0.0), tensor(0.0));
        for number in 0..5 {
            let gradient = tensor(0.7 * f64::from(number));
            fused_update(rule, &mut one, &gradient, [&mut first]).unwrap();
            rule.by_operations(&mut other, &gradient, &mut second).unwrap();
        }
        assert!(other.is_parameter());
        assert_eq!(other.to_vec::<f64>().unwrap(), one.to_vec::<f64>().unwrap());
        assert_eq!(second.to_vec::<f64>().unwrap(), first.to_vec::<f64>().unwrap());
    }
}
