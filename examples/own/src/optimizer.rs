//! The optimizer: Adagrad.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom::tensor::{Tensor, TensorError};
use weightloom::train::extensions::OptionProblem;
use weightloom::train::optimizer::{Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, StepInfo};

/// Adagrad: the step of an element shrinks with the gradients that it has seen.
#[derive(Debug)]
pub struct Adagrad;

/// Keys under `train.optimizer.options`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdagradOptions {
    /// What every element starts with as its sum of squared gradients.
    initial_accumulator_value: f64,
}

impl Default for AdagradOptions {
    fn default() -> Self {
        Self { initial_accumulator_value: 1e-3 }
    }
}

impl OptimizerFactory for Adagrad {
    type Options = AdagradOptions;

    fn name(&self) -> &'static str {
        "adagrad"
    }

    fn summary(&self) -> &'static str {
        "Steps that shrink with the sum of squared gradients."
    }

    fn problems(&self, options: &AdagradOptions) -> Vec<OptionProblem> {
        match options.initial_accumulator_value > 0.0 {
            true => Vec::new(),
            false => vec![OptionProblem::new("initial_accumulator_value", "must be above 0")],
        }
    }

    fn build(
        &self,
        _: &OptimizerConfig,
        options: AdagradOptions,
    ) -> Result<Box<dyn Optimizer>, OptimizerError> {
        Ok(Box::new(options))
    }
}

impl Optimizer for AdagradOptions {
    fn name(&self) -> &'static str {
        "adagrad"
    }

    fn states(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let gradient = gradient.scale(step.gradient_scale)?.add(&parameter.scale(step.weight_decay)?)?;
        states[0] = states[0].add(&gradient.mul(&gradient)?)?;
        let initial = self.initial_accumulator_value;
        let initial = Tensor::full(initial, parameter.dtype(), &[], parameter.device())?;
        let scale = states[0].add(&initial)?.rsqrt()?.scale(step.learning_rate)?;
        *parameter = parameter.sub(&gradient.mul(&scale)?)?;
        Ok(())
    }
}
