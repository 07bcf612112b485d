//! Losses, and their section of the config.
//!
//! A [`Loss`] turns the result of the last pipeline stage into one number. The
//! default is the model's own: cross-entropy of the next token. Losses of preferences
//! compare completions, and distillation imitates a teacher. To train with another one,
//! implement [`LossFactory`] in your own crate and add it to [`Losses`].

mod batch;
mod cross_entropy;
mod distillation;
mod error;
mod metric_sums;
mod preference;
mod registry;
mod token_logprobs;
#[cfg(test)]
mod trl_fixture;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Shape};
use weightloom_nn::{AdapterSpec, Model, NnError};

pub use batch::{BatchTotals, LossBatch, LossNeeds, Reference};
pub(crate) use distillation::teacher_logits;
pub use error::LossError;
pub use metric_sums::MetricSums;
pub(crate) use preference::completion_logprobs;
pub use registry::{LossFactory, Losses, SelectedLoss};

/// Loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LossConfig {
    /// What is minimized.
    pub kind: LossKind,
    /// The share of each target's probability that is spread evenly over the vocabulary,
    /// for `cross_entropy`. Evaluations compute the loss without it.
    pub label_smoothing: f64,
    /// Factor of a penalty that keeps logits small, for `cross_entropy`: the squared
    /// log-sum-exp of the logits, averaged over all targets. Evaluations compute the loss
    /// without it.
    pub z_loss: f64,
    /// Settings that only this loss has.
    pub options: Option<Map<String, Value>>,
}

/// What is minimized.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = crate::extensions::one_of)]
pub enum LossKind {
    /// Cross-entropy of the next token, or the loss of a model with its own.
    #[default]
    CrossEntropy,
    /// Direct preference optimization: chosen completions become likelier than
    /// rejected ones, relative to the initial model.
    Dpo,
    /// Odds ratio preference optimization: the cross-entropy of prompts with chosen
    /// completions, and the log odds ratio of chosen and rejected ones. Needs no
    /// reference model.
    Orpo,
    /// Simple preference optimization: the tokens of chosen completions become likelier
    /// than those of rejected ones, by a margin. Needs no reference model.
    Simpo,
    /// Kahneman-Tversky optimization: desirable completions become likelier and
    /// undesirable ones less likely, relative to the initial model.
    Kto,
    /// Kullback-Leibler divergence of the model from a teacher, and cross-entropy.
    Distillation,
    /// One that the program has registered with [`Losses`].
    #[serde(untagged)]
    #[schemars(skip)]
    Registered(String),
}

impl LossKind {
    /// The name in the config.
    pub fn name(&self) -> &str {
        match self {
            Self::CrossEntropy => "cross_entropy",
            Self::Dpo => "dpo",
            Self::Orpo => "orpo",
            Self::Simpo => "simpo",
            Self::Kto => "kto",
            Self::Distillation => "distillation",
            Self::Registered(name) => name,
        }
    }
}

/// The result of the last stage, and what it should have been.
#[derive(Clone, Copy)]
pub struct LossArgs<'a> {
    /// The last stage of the model.
    pub model: &'a dyn Model,
    /// Its result, `[batch, time, hidden]`.
    pub hidden: &'a DTensor,
    /// The next token at each position, `[batch, time]`;
    /// [`IGNORED`](weightloom_nn::IGNORED) masks it.
    pub targets: &'a DTensor,
    /// The number by which sums are divided: [`Loss::divisor`] of the whole batch, so
    /// that the losses of its micro-batches add up to the mean.
    pub divisor: f64,
    /// The adapter that is trained.
    pub adapter: Option<AdapterSpec<'a>>,
    /// What is known of the batch.
    pub batch: LossBatch<'a>,
}

impl LossArgs<'_> {
    /// Logits in `f32`, `[batch · time, vocabulary]`.
    pub fn logits(&self) -> Result<DTensor, NnError> {
        let [batch, time, width] = [self.hidden.shape()[0], self.hidden.shape()[1], self.hidden.shape()[2]];
        let rows = self.hidden.reshape(&Shape::new(&[batch * time, width])?)?;
        Ok(self.model.logits(&rows, self.adapter.into())?.cast(DType::F32)?)
    }

    /// The targets of the rows of [`logits`](Self::logits), `[batch · time]`.
    pub fn row_targets(&self) -> Result<DTensor, NnError> {
        let [batch, time] = [self.targets.shape()[0], self.targets.shape()[1]];
        Ok(self.targets.reshape(&Shape::new(&[batch * time])?)?)
    }
}

/// A loss. It does not know about ranks: operations on distributed tensors do.
pub trait Loss: Send + Sync {
    /// The loss, a scalar in `f32`: the sum over all targets divided by
    /// [`divisor`](LossArgs::divisor).
    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError>;

    /// The loss that evaluations report.
    fn evaluate(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        self.compute(args)
    }

    /// What it needs beside the result of the model; by default nothing.
    fn needs(&self) -> LossNeeds {
        LossNeeds::default()
    }

    /// What sums over a batch are divided by: by default its number of targets.
    fn divisor(&self, totals: &BatchTotals) -> f64 {
        (totals.targets as f64).max(1.0)
    }
}

/// The loss of the model.
pub(crate) struct ModelLoss;

impl Loss for ModelLoss {
    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        args.model.loss(args.hidden, args.targets, args.divisor, args.adapter)
    }
}
