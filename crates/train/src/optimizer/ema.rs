//! An exponential moving average of the weights.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_layout::Shape;
use weightloom_tensor::{Tensor, TensorError, no_grad};

use super::distributed::update;
use super::{
    DistributedUpdate, EvaluatedWeights, Optimizer, PatternError, StateForm, StateSpec, StateStart, StepInfo,
};

/// Exponential moving average of the trained weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EmaConfig {
    /// Share of the average that a step keeps; the new weights have the rest.
    pub decay: f64,
    /// Steps before the average starts. During them it is a copy of the weights.
    pub start_step: u64,
    /// Evaluate, sample from and save the average as the model. The trained weights are
    /// kept in the checkpoint for resuming. If false, the average is only kept there.
    pub evaluate: bool,
}

/// The default decay of PyTorch's `get_ema_multi_avg_fn`.
impl Default for EmaConfig {
    fn default() -> Self {
        Self { decay: 0.999, start_step: 0, evaluate: false }
    }
}

/// Adds a moving average of the weights to an optimizer, if there should be one. It is
/// a state of each parameter, sharded as the parameter is.
pub fn with_average(optimizer: Box<dyn Optimizer>, config: Option<&EmaConfig>) -> Box<dyn Optimizer> {
    match config {
        Some(config) => Box::new(Ema { optimizer, config: config.clone() }),
        None => optimizer,
    }
}

/// An optimizer that also keeps a moving average of the weights.
struct Ema {
    optimizer: Box<dyn Optimizer>,
    config: EmaConfig,
}

impl Ema {
    /// The states of the optimizer, and the average.
    fn split<'a>(&self, states: &'a mut [Tensor]) -> Result<(&'a mut [Tensor], &'a mut Tensor), TensorError> {
        let wrong = TensorError::StateCount { op: "ema", expected: 1, found: 0 };
        states.split_last_mut().map(|(average, own)| (own, average)).ok_or(wrong)
    }

    fn blend(&self, step: &StepInfo, average: &mut Tensor, weights: &Tensor) -> Result<(), TensorError> {
        let weights = weights.detach();
        // The first step after the start copies too, as PyTorch does.
        *average = match step.number > self.config.start_step.saturating_add(1) {
            false => weights.scale(1.0)?,
            true => average.add(&weights.sub(average)?.scale(1.0 - self.config.decay)?)?,
        };
        Ok(())
    }
}

impl Optimizer for Ema {
    fn name(&self) -> &'static str {
        self.optimizer.name()
    }

    fn states(&self) -> &'static [&'static str] {
        self.optimizer.states()
    }

    fn states_of(&self, name: &str, shape: &Shape) -> Vec<StateSpec> {
        let mut states = self.optimizer.states_of(name, shape);
        states.push(StateSpec { name: "ema", form: StateForm::Elementwise, start: StateStart::Parameter });
        states
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        let (own, average) = self.split(states)?;
        self.optimizer.step(step, parameter, gradient, own)?;
        no_grad(|| self.blend(step, average, parameter))
    }

    fn distributed(&self) -> Option<&dyn DistributedUpdate> {
        Some(self)
    }

    fn evaluated(&self) -> EvaluatedWeights {
        if self.config.evaluate { EvaluatedWeights::Averaged } else { self.optimizer.evaluated() }
    }

    fn average(&self, parameter: &Tensor, states: &[Tensor]) -> Result<Tensor, TensorError> {
        match (self.config.evaluate, states) {
            (true, [.., average]) => Ok(average.clone()),
            (_, [own @ .., _]) => self.optimizer.average(parameter, own),
            (_, []) => Err(TensorError::StateCount { op: "ema", expected: 1, found: 0 }),
        }
    }

    fn check_names(&self, names: &BTreeSet<&str>) -> Result<(), PatternError> {
        self.optimizer.check_names(names)
    }
}

impl DistributedUpdate for Ema {
    fn update(
        &self,
        step: &StepInfo,
        parameter: &mut DTensor,
        gradient: &DTensor,
        states: &mut [Tensor],
    ) -> Result<(), DTensorError> {
        let (own, average) = self.split(states)?;
        update(&*self.optimizer, step, parameter, gradient, own)?;
        Ok(no_grad(|| self.blend(step, average, parameter.to_local()))?)
    }
}
