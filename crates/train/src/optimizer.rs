//! Optimizers, and their section of the config.
//!
//! An [`Optimizer`] updates one parameter at a time, in place, and names the
//! state tensors it keeps for it. Most do not know about ranks: each rank passes its
//! own shard, and the rule is elementwise, so shards are updated exactly as the whole
//! parameter would be. One that needs more than a shard has a [`DistributedUpdate`].
//!
//! To add an optimizer here, write its file, and add it to [`OptimizerKind`] and
//! [`Optimizers::standard`]; in your own crate, implement [`OptimizerFactory`] and
//! add it to [`Optimizers`]. [`LearningRate`](crate::schedule::LearningRate) sets
//! the learning rate of each step, [`WeightDecay`] the decay of each parameter.

mod adafactor;
mod adamw;
mod adamw_8bit;
mod checked;
mod distributed;
mod ema;
mod error;
mod learning_rate_scale;
mod lion;
mod muon;
mod options;
mod pattern;
mod quantized;
mod registry;
mod schedule_free;
mod sgd;
mod solo;
mod state;
#[cfg(test)]
mod tests;
mod weight_decay;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weightloom_layout::Shape;
use weightloom_tensor::{Tensor, TensorError};

pub use adafactor::{Adafactor, RelativeStep};
pub use adamw::AdamW;
pub use adamw_8bit::AdamW8bit;
pub use checked::{OptimizerFault, OptimizerProblem};
pub use distributed::{DistributedUpdate, EvaluatedWeights};
pub(crate) use distributed::{evaluated, update};
pub use ema::{EmaConfig, with_average};
pub use error::OptimizerError;
pub use learning_rate_scale::LearningRateScale;
pub use lion::Lion;
pub use muon::{AdjustLr, Muon};
pub use pattern::{PatternError, Patterns};
pub use registry::{OptimizerFactory, Optimizers};
pub use schedule_free::ScheduleFreeAdamW;
pub use sgd::Sgd;
pub use state::{BlockError, StateForm, StateSpec, StateStart, initial_state, initial_states};
pub(crate) use state::{ParameterStates, StateTensor};
pub use weight_decay::WeightDecay;

/// Optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Update rule.
    pub kind: OptimizerKind,
    /// Peak learning rate.
    pub lr: f64,
    /// Factors of the learning rate for some parameters: a map from patterns like those
    /// of `freeze_modules`, which here may begin at any component of a name, to numbers.
    /// Where several match, all apply. For LoRA+, set `{lora_B: 16}`; for layer-wise
    /// rates, `{layers.0: 0.5, layers.1: 0.6}`.
    pub lr_scale: BTreeMap<String, f64>,
    /// Decay rates of the running averages of the gradient and its square, for `adamw`
    /// and for the parameters that `muon` leaves to AdamW.
    pub betas: [f64; 2],
    /// Term added to the denominator for numerical stability, for `adamw` and `muon`.
    pub eps: f64,
    /// Momentum of `sgd`. 0 disables it.
    pub momentum: f64,
    /// Weight decay coefficient.
    pub weight_decay: f64,
    /// Parameters without weight decay, as patterns like those of
    /// `freeze_modules`. One-dimensional parameters have none either, unless
    /// `decay_all` is true.
    pub no_decay: Vec<String>,
    /// Apply weight decay to one-dimensional parameters (norms and biases) too.
    pub decay_all: bool,
    /// Maximum norm of all gradients together; larger gradients are scaled down
    /// to it. 0 disables clipping.
    pub max_grad_norm: f64,
    /// Settings of the update rule; see the sections `train.optimizer.options` below.
    pub options: Option<Map<String, Value>>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            lr: 3e-4,
            lr_scale: BTreeMap::new(),
            betas: [0.9, 0.95],
            eps: 1e-8,
            momentum: 0.9,
            weight_decay: 0.1,
            no_decay: Vec::new(),
            decay_all: false,
            max_grad_norm: 1.0,
            options: None,
        }
    }
}

/// Update rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = crate::extensions::one_of)]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    #[default]
    Adamw,
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Lion: the sign of a momentum, with decoupled weight decay.
    Lion,
    /// Adafactor: keeps means of rows and columns of squared gradients, so that matrices
    /// need almost no memory for states.
    Adafactor,
    /// Schedule-free AdamW: evaluates and saves an average of the weights, and needs no
    /// decay of the learning rate (`schedule: {kind: constant}`).
    #[serde(rename = "schedule_free_adamw")]
    ScheduleFreeAdamW,
    /// Muon for the matrices of hidden layers: momentum, orthogonalized. AdamW for all
    /// other parameters.
    Muon,
    /// AdamW whose states have eight bits for each element, in host memory.
    #[serde(rename = "adamw_8bit")]
    AdamW8bit,
    /// One that the program has registered with [`Optimizers`].
    #[serde(untagged)]
    #[schemars(skip)]
    Registered(String),
}

impl OptimizerKind {
    /// The name in the config.
    pub fn name(&self) -> &str {
        match self {
            Self::Adamw => "adamw",
            Self::Sgd => "sgd",
            Self::Lion => "lion",
            Self::Adafactor => "adafactor",
            Self::ScheduleFreeAdamW => "schedule_free_adamw",
            Self::Muon => "muon",
            Self::AdamW8bit => "adamw_8bit",
            Self::Registered(name) => name,
        }
    }

    fn is_built_in(&self) -> bool {
        !matches!(self, Self::Registered(_))
    }
}

/// Builds the built-in optimizer that a config selects.
pub fn from_config(config: &OptimizerConfig) -> Result<Box<dyn Optimizer>, OptimizerError> {
    Optimizers::standard().build(config)
}

/// An update rule with per-parameter state.
pub trait Optimizer: Send + Sync {
    /// The name in the config.
    fn name(&self) -> &'static str;

    /// Names of the state tensors of each parameter, in order, as in PyTorch.
    /// A state has the parameter's shape and starts at zero, unless
    /// [`states_of`](Self::states_of) says otherwise.
    fn states(&self) -> &'static [&'static str];

    /// The states of one parameter, given its name and its global shape: some or all of
    /// [`states`](Self::states).
    #[allow(unused_variables, reason = "named for documentation")]
    fn states_of(&self, name: &str, shape: &Shape) -> Vec<StateSpec> {
        self.states().iter().map(|name| StateSpec::zeros(name)).collect()
    }

    /// Updates a parameter and its states. Memory that other tensors share is
    /// copied first. All tensors have the same shape and dtype, unless
    /// [`states_of`](Self::states_of) says otherwise.
    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError>;

    /// The rule for distributed parameters, if it is not enough to update each shard
    /// alone.
    fn distributed(&self) -> Option<&dyn DistributedUpdate> {
        None
    }

    /// The weights that are evaluated, and saved as the model.
    fn evaluated(&self) -> EvaluatedWeights {
        EvaluatedWeights::Trained
    }

    /// The average to evaluate in place of a parameter, or of a shard of it.
    #[allow(unused_variables, reason = "named for documentation")]
    fn average(&self, parameter: &Tensor, states: &[Tensor]) -> Result<Tensor, TensorError> {
        Ok(parameter.clone())
    }

    /// Checks patterns in the options against the names of all trained parameters of
    /// the whole model.
    #[allow(unused_variables, reason = "named for documentation")]
    fn check_names(&self, names: &BTreeSet<&str>) -> Result<(), PatternError> {
        Ok(())
    }
}

/// The inputs of an optimizer step other than gradients.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepInfo {
    /// Step number, starting at 1.
    pub number: u64,
    pub learning_rate: f64,
    pub weight_decay: f64,
    /// Factor applied to gradients first: [`clip_factor`](crate::spec::clip_factor).
    pub gradient_scale: f64,
}

/// The states as an array, if their number is right.
fn exactly<'a, const COUNT: usize>(
    op: &'static str,
    states: &'a mut [Tensor],
) -> Result<&'a mut [Tensor; COUNT], TensorError> {
    let found = states.len();
    states.try_into().map_err(|_| TensorError::StateCount { op, expected: COUNT, found })
}
