//! Callbacks and evaluators of a training run.
//!
//! Every rank calls its own callbacks, at the same points of the run. A callback
//! can read everything; to end the run it returns [`Control::Stop`], which takes
//! effect after the current step on all ranks, with a checkpoint. An
//! [`Evaluator`] measures saved checkpoints.

mod registry;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use weightloom_errors::caught;
use weightloom_hub::CheckpointMismatch;

use crate::config::{Config, ConfigChange};
use crate::data::{DataSummary, DocumentsRead};
use crate::engine::{Engine, StepResult};
use crate::error::TrainError;
use crate::metrics::Record;
use crate::warning::Warning;

pub use registry::{CallbackError, CallbackFactory, Callbacks};

/// The state of a run, as callbacks see it.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct TrainerState<'a> {
    pub config: &'a Config,
    /// The model and optimizer of this rank.
    pub engine: &'a Engine,
    pub rank: usize,
    pub world: usize,
    /// Number of steps done.
    pub step: u64,
    pub total_steps: u64,
    /// Number of completed epochs.
    pub epoch: u64,
    /// Estimated remaining time.
    pub seconds_left: Option<f64>,
}

/// Whether to continue the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// Continue.
    #[default]
    Continue,
    /// Stop after the current step.
    Stop,
}

/// The result of an evaluation during training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Mean loss over all targets of `data.eval_paths`, or else the mean of the losses
    /// of the other sets; `None` without evaluation data.
    pub loss: Option<f64>,
    /// Number of target tokens.
    pub targets: u64,
    /// The losses of `data.eval_sets`.
    pub sets: BTreeMap<String, SetLoss>,
    /// Metrics of the loss by name, such as `rewards/accuracies`.
    pub metrics: BTreeMap<String, f64>,
    /// Prompts and the text generated for each.
    pub samples: Vec<(String, String)>,
}

impl Evaluation {
    /// Whether the loss is a cross-entropy, which has a perplexity: others have metrics.
    pub fn has_perplexity(&self) -> bool {
        self.metrics.is_empty() && self.sets.values().all(|set| set.metrics.is_empty())
    }
}

/// The loss of an evaluation set.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct SetLoss {
    /// Mean loss over all targets.
    pub loss: f64,
    /// Number of target tokens.
    pub targets: u64,
    /// Metrics of the loss by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
}

/// A notice for the user about the run's data or settings.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Notice {
    /// The config differs from that of the checkpoint.
    ConfigChanged { changes: Vec<ConfigChange> },
    /// The checkpoint does not record its config, so changes are not noticed.
    NoRecordedConfig,
    /// The data differs from that of the checkpoint, and starts from the beginning.
    DataRestarted { reason: String },
    /// Something that the run survived.
    Warning(Warning),
}

/// What a run is about to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSummary {
    /// The training data; `None` for dummy data.
    pub data: Option<DataSummary>,
    /// The card of the dataset, if the config names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Tensors of the initial weights that did not match, and were initialized or
    /// ignored; `None` if all matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_mismatch: Option<CheckpointMismatch>,
    /// The evaluation data of `data.eval_paths` that is used, if there is any.
    pub eval: Option<DocumentsRead>,
    /// That of `data.eval_sets`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eval_sets: BTreeMap<String, DocumentsRead>,
    /// Parameters of the model.
    pub parameters: u64,
    /// Parameters that are trained: weights, or those of an adapter.
    pub trainable_parameters: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// The step to start from.
    pub first_step: u64,
}

/// The remaining time of a run, as measured in its first steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct TimeEstimate {
    /// Steps that were measured.
    pub measured_steps: u64,
    pub steps_left: u64,
    pub seconds_left: f64,
}

/// The result of a callback.
pub type CallbackResult = Result<Control, TrainError>;

/// Hooks into a training run, named as in transformers. All do nothing by
/// default. One that panics ends the run with an error that names it.
#[allow(unused_variables, reason = "named for documentation")]
pub trait Callback {
    /// The name in errors.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }
    /// The model, the data and the optimizer are ready.
    fn on_init_end(&mut self, state: &TrainerState<'_>) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// Before the first step of this process.
    fn on_train_begin(&mut self, state: &TrainerState<'_>) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After the last step and checkpoint.
    fn on_train_end(&mut self, state: &TrainerState<'_>) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// Before the first step of an epoch.
    fn on_epoch_begin(&mut self, state: &TrainerState<'_>) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After the last step of an epoch.
    fn on_epoch_end(&mut self, state: &TrainerState<'_>) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// Before a step.
    fn on_step_begin(&mut self, state: &TrainerState<'_>) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After the backward pass of a micro-batch, `done` of `total` in the step.
    fn on_substep_end(&mut self, done: usize, total: usize) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After the gradients are reduced and before the weights are updated.
    fn on_pre_optimizer_step(&mut self, gradient_norm: f64) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After the weights are updated.
    fn on_step_end(&mut self, state: &TrainerState<'_>, result: &StepResult) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After the metrics of a step are recorded.
    fn on_log(&mut self, state: &TrainerState<'_>, record: &Record) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After a checkpoint is complete.
    fn on_save(&mut self, state: &TrainerState<'_>, checkpoint: &Path) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After the run is restored from a checkpoint.
    fn on_resume(&mut self, state: &TrainerState<'_>, checkpoint: &Path) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// After an evaluation on the held-out data.
    fn on_evaluate(&mut self, state: &TrainerState<'_>, evaluation: &Evaluation) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// While documents are counted to find the number of steps.
    fn on_count_documents(&mut self, done: u64, total: u64) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// While the log-probabilities of the initial model are computed, before training.
    fn on_reference_logprobs(&mut self, done: u64, total: u64) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// Before the first step of this process, after the data is counted.
    fn on_summary(&mut self, summary: &RunSummary) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// Once the first steps are done.
    fn on_estimate(&mut self, estimate: &TimeEstimate) -> CallbackResult {
        Ok(Control::Continue)
    }
    /// For each [`Notice`].
    fn on_notice(&mut self, notice: &Notice) -> CallbackResult {
        Ok(Control::Continue)
    }
}

/// Metrics that an [`Evaluator`] reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvalMetrics {
    /// Scalars by name, such as `sway/overall`.
    pub scalars: BTreeMap<String, f64>,
    /// Texts by name, such as `sway/band`.
    pub texts: BTreeMap<String, String>,
}

/// Evaluates each checkpoint of a run. The metrics go to the run's sinks.
pub trait Evaluator {
    /// Evaluates a complete checkpoint. `None` if it could not be evaluated.
    fn evaluate(
        &mut self,
        state: &TrainerState<'_>,
        checkpoint: &Path,
    ) -> Result<Option<EvalMetrics>, TrainError>;
}

/// Calls all callbacks; returns [`Control::Stop`] if any does. A panic is an error.
pub(crate) fn for_each(
    callbacks: &mut [Box<dyn Callback + '_>],
    mut call: impl FnMut(&mut dyn Callback) -> CallbackResult,
) -> CallbackResult {
    let mut control = Control::Continue;
    for callback in callbacks {
        let called = caught(|| call(&mut **callback)).unwrap_or_else(|panic| {
            let callback = caught(|| callback.name().to_owned()).unwrap_or_default();
            Err(CallbackError::Unusable { callback, problem: panic.to_string() }.into())
        });
        if called? == Control::Stop {
            control = Control::Stop;
        }
    }
    Ok(control)
}
