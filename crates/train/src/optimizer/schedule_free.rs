//! Schedule-free AdamW: an average of the iterates in place of a schedule.
//!
//! Gradients are computed at `y`, between the base iterates `z` and their weighted
//! average `x`, which is the model that is evaluated and saved. As in the reference,
//! the parameter holds `y`, and `x` is extrapolated from `y` and `z`.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_tensor::{Device, Tensor, TensorError, UpdateRule, Wide, fused_update, scalar};

use super::options::{Range, number, problems};
use super::{
    EvaluatedWeights, Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, StateForm, StateSpec,
    StateStart, StepInfo, exactly,
};
use crate::extensions::OptionProblem;

/// Schedule-free AdamW (Defazio et al. 2024).
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct ScheduleFreeAdamW {
    /// Where gradients are computed, from `z` (0) to `x` (1), and how slowly the mean
    /// of squared gradients forgets.
    pub betas: [f64; 2],
    pub eps: f64,
    /// A step's weight in the average grows with this power of its number.
    pub r: f64,
    /// A step's weight in the average grows with this power of the highest learning
    /// rate so far.
    pub weight_lr_power: f64,
}

/// Sum of the weights of all steps, and the highest learning rate so far.
const NUMBERS: StateSpec =
    StateSpec { name: "averaging", form: StateForm::Numbers(2), start: StateStart::Zero };

impl ScheduleFreeAdamW {
    /// The share of a step in the average. Updates the numbers that it depends on.
    fn share(&self, step: &StepInfo, numbers: &mut Tensor) -> Result<f64, TensorError> {
        // A dry run has no values.
        if numbers.device() == Device::Meta {
            return Ok(1.0);
        }
        let [sum, highest] = numbers.to_vec::<f64>()?[..] else {
            return Err(TensorError::StateCount { op: self.name(), expected: 2, found: 0 });
        };
        let highest = highest.max(step.learning_rate);
        let weight = (step.number as f64).powf(self.r) * highest.powf(self.weight_lr_power);
        let sum = sum + weight;
        *numbers = Tensor::from_slice(&[sum, highest], &[2])?;
        // Steps with a learning rate of zero have no weight.
        Ok(if sum > 0.0 { weight / sum } else { 0.0 })
    }
}

impl Optimizer for ScheduleFreeAdamW {
    fn name(&self) -> &'static str {
        "schedule_free_adamw"
    }

    fn states(&self) -> &'static [&'static str] {
        &["z", "exp_avg_sq", "averaging"]
    }

    fn states_of(&self, _: &str, _: &weightloom_layout::Shape) -> Vec<StateSpec> {
        let z = StateSpec { start: StateStart::Parameter, ..StateSpec::zeros("z") };
        vec![z, StateSpec::zeros("exp_avg_sq"), NUMBERS]
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let [z, square, numbers] = exactly(self.name(), states)?;
        let share = self.share(step, numbers)?;
        let [beta1, beta2] = self.betas;
        let rule = ScheduleFreeStep {
            beta2,
            eps: self.eps,
            decay: step.weight_decay,
            learning_rate: step.learning_rate,
            share,
            size: step.learning_rate * (beta1 * (1.0 - share) - 1.0),
            root: 1.0 / (1.0 - beta2.powf(step.number as f64)).sqrt(),
            scale: step.gradient_scale,
        };
        match parameter.device() {
            Device::Cpu | Device::Meta => fused_update(rule, parameter, gradient, [z, square]),
            // The fused rule has no kernel for GPUs.
            _ => rule.by_operations(parameter, gradient, [z, square]),
        }
    }

    fn evaluated(&self) -> EvaluatedWeights {
        EvaluatedWeights::Averaged
    }

    fn average(&self, parameter: &Tensor, states: &[Tensor]) -> Result<Tensor, TensorError> {
        let [z, ..] = states else {
            return Err(TensorError::StateCount { op: self.name(), expected: 3, found: states.len() });
        };
        parameter.add(&z.sub(parameter)?.scale(1.0 - 1.0 / self.betas[0])?)
    }
}

/// The constants of one step.
#[derive(Clone, Copy, Debug)]
struct ScheduleFreeStep {
    beta2: f64,
    eps: f64,
    decay: f64,
    learning_rate: f64,
    /// The share of this step in the average.
    share: f64,
    /// Factor of the direction for `y`.
    size: f64,
    /// Bias correction of the root of the mean square.
    root: f64,
    scale: f64,
}

impl ScheduleFreeStep {
    /// The same rule, one operation after another.
    fn by_operations(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        [z, square]: [&mut Tensor; 2],
    ) -> Result<(), TensorError> {
        let is_parameter = parameter.is_parameter();
        let y = parameter.detach();
        let gradient = gradient.detach().cast(y.dtype())?.scale(self.scale)?;
        *square = square.scale(self.beta2)?.add(&gradient.mul(&gradient)?.scale(1.0 - self.beta2)?)?;
        let eps = Tensor::full(self.eps, y.dtype(), &[], y.device())?;
        let direction = gradient.div(&square.sqrt()?.scale(self.root)?.add(&eps)?)?;
        let direction = direction.add(&y.scale(self.decay)?)?;
        let new = y.add(&z.sub(&y)?.scale(self.share)?)?.add(&direction.scale(self.size)?)?;
        *z = z.sub(&direction.scale(self.learning_rate)?)?;
        *parameter = if is_parameter { new.requires_grad() } else { new };
        Ok(())
    }
}

impl UpdateRule<2> for ScheduleFreeStep {
    const NAME: &'static str = "schedule_free_adamw";
    const FLOPS: u64 = 18;

    #[inline(always)]
    fn update<W: Wide>(&self, y: W, gradient: W, [z, square]: [W; 2]) -> (W, [W; 2]) {
        let gradient = gradient * scalar(self.scale);
        let square = square * scalar(self.beta2) + gradient * gradient * scalar(1.0 - self.beta2);
        let direction = gradient / (square.sqrt() * scalar(self.root) + scalar(self.eps));
        let direction = direction + y * scalar(self.decay);
        let new = y + (z - y) * scalar(self.share) + direction * scalar(self.size);
        (new, [z - direction * scalar(self.learning_rate), square])
    }
}

#[derive(Debug)]
pub(super) struct ScheduleFreeAdamWFactory;

/// Options of `schedule_free_adamw`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ScheduleFreeAdamWOptions {
    /// Where gradients are computed, from the newest weights (0) to their average (1),
    /// and the decay rate of the running average of squared gradients.
    betas: [f64; 2],
    /// Term added to the denominator for numerical stability.
    eps: f64,
    /// Power of a step's number in its weight in the average.
    r: f64,
    /// Power of the highest learning rate so far in a step's weight in the average.
    weight_lr_power: f64,
}

impl Default for ScheduleFreeAdamWOptions {
    fn default() -> Self {
        Self { betas: [0.9, 0.999], eps: 1e-8, r: 0.0, weight_lr_power: 2.0 }
    }
}

impl OptimizerFactory for ScheduleFreeAdamWFactory {
    type Options = ScheduleFreeAdamWOptions;

    fn name(&self) -> &'static str {
        "schedule_free_adamw"
    }

    fn summary(&self) -> &'static str {
        "Schedule-free AdamW: evaluates and saves an average of the weights, and needs no decay of the \
         learning rate (`schedule: {kind: constant}`)."
    }

    fn problems(&self, options: &ScheduleFreeAdamWOptions) -> Vec<OptionProblem> {
        let mut found = problems([
            number("betas.1", options.betas[1], Range::Share),
            number("eps", options.eps, Range::Positive),
            number("r", options.r, Range::NotNegative),
            number("weight_lr_power", options.weight_lr_power, Range::NotNegative),
        ]);
        // The average is extrapolated from `y`, which with 0 does not depend on it.
        let first = options.betas[0];
        if !(first > 0.0 && first <= 1.0) {
            found.push(OptionProblem::new("betas.0", format!("{first} is not a number above 0 and up to 1")));
        }
        found
    }

    fn build(
        &self,
        _: &OptimizerConfig,
        options: ScheduleFreeAdamWOptions,
    ) -> Result<Box<dyn Optimizer>, OptimizerError> {
        let ScheduleFreeAdamWOptions { betas, eps, r, weight_lr_power } = options;
        Ok(Box::new(ScheduleFreeAdamW { betas, eps, r, weight_lr_power }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn operations_compute_what_the_fused_rule_does() {
        let rule = ScheduleFreeStep {
            beta2: 0.9,
            eps: 1e-8,
            decay: 0.1,
            learning_rate: 0.05,
            share: 0.3,
            size: -0.02,
            root: 1.5,
            scale: 0.5,
        };
        let tensor = |factor: f64| {
            let x: Vec<f64> = (0..40).map(|at| (f64::from(at) * factor).cos()).collect();
            Tensor::from_slice(&x, &[40]).unwrap()
        };
        let zeros = || tensor(0.0).scale(0.0).unwrap();
        let (mut one, mut other) = (tensor(0.3), tensor(0.3).requires_grad());
        let (mut z, mut square) = (tensor(0.2), zeros());
        let (mut also_z, mut also_square) = (tensor(0.2), zeros());
        for number in 1..5 {
            let gradient = tensor(0.7 * f64::from(number));
            fused_update(rule, &mut one, &gradient, [&mut z, &mut square]).unwrap();
            rule.by_operations(&mut other, &gradient, [&mut also_z, &mut also_square]).unwrap();
        }
        assert!(other.is_parameter());
        let pairs = [(&one, &other), (&z, &also_z), (&square, &also_square)];
        for (found, expected) in pairs {
            let values = found.to_vec::<f64>().unwrap().into_iter().zip(expected.to_vec::<f64>().unwrap());
            // The same operations; a compiler may fuse a product and a sum.
            assert!(values.into_iter().all(|(a, b)| (a - b).abs() < 1e-14));
        }
    }
}
