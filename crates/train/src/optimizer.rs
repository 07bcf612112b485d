//! Optimizers, and their section of the config.
//!
//! An [`Optimizer`] updates one parameter at a time, in place, and names the
//! state tensors it keeps for it. It does not know about ranks: each rank
//! passes its own shard, and every rule here is elementwise, so shards are
//! updated exactly as the whole parameter would be.
//!
//! To add an optimizer here, write its file, and add it to [`OptimizerKind`] and
//! [`Optimizers::standard`]; in your own crate, implement [`OptimizerFactory`] and
//! add it to [`Optimizers`]. [`LearningRate`](crate::schedule::LearningRate) sets
//! the learning rate of each step, [`WeightDecay`] the decay of each parameter.

mod adamw;
mod checked;
mod error;
mod pattern;
mod registry;
mod sgd;
#[cfg(test)]
mod tests;
mod weight_decay;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weightloom_tensor::{Tensor, TensorError};

pub use adamw::AdamW;
pub use checked::{OptimizerFault, OptimizerProblem};
pub use error::OptimizerError;
pub use pattern::{PatternError, Patterns};
pub use registry::{OptimizerFactory, Optimizers};
pub use sgd::Sgd;
pub use weight_decay::WeightDecay;

/// Optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Update rule.
    pub kind: OptimizerKind,
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rates of AdamW's running averages of the gradient and its square.
    pub betas: [f64; 2],
    /// Term added to AdamW's denominator for numerical stability.
    pub eps: f64,
    /// Momentum of SGD. 0 disables it.
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
    /// Settings of an update rule that is not built in.
    pub options: Option<Map<String, Value>>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            lr: 3e-4,
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
    /// A state has the parameter's shape and starts at zero.
    fn states(&self) -> &'static [&'static str];

    /// Updates a parameter and its states. Memory that other tensors share is
    /// copied first. All tensors have the same shape and dtype.
    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError>;
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

/// Zero-filled states for a parameter.
pub fn initial_states(optimizer: &dyn Optimizer, parameter: &Tensor) -> Result<Vec<Tensor>, TensorError> {
    let zeros = || Tensor::zeros(parameter.dtype(), parameter.shape(), parameter.device());
    optimizer.states().iter().map(|_| zeros()).collect()
}

/// The states as an array, if their number is right.
fn exactly<'a, const COUNT: usize>(
    op: &'static str,
    states: &'a mut [Tensor],
) -> Result<&'a mut [Tensor; COUNT], TensorError> {
    let found = states.len();
    states.try_into().map_err(|_| TensorError::StateCount { op, expected: COUNT, found })
}
