//! What a run does when a step goes wrong, and when nothing improves any more.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to do after a bad step. The weights keep their values from before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BadStepAction {
    /// Save a checkpoint of the weights before the step, and end with an error that
    /// names the documents of its batch, and the layer of a NaN. A new process tries
    /// the step again.
    #[default]
    Stop,
    /// Continue with the next batch. After 10 such steps in a row, stop.
    Skip,
    /// Return to the last checkpoint, or to the initial weights, and continue with
    /// the batch after the bad one. After 3 returns to one checkpoint, stop.
    RollBack,
}

/// A sudden rise of the loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpikeConfig {
    /// What to do about it.
    pub action: BadStepAction,
    /// Number of earlier steps to compare with. Nothing is a spike before there are
    /// as many.
    pub window: usize,
    /// A loss is a spike if it exceeds the mean of the window by more than this many
    /// standard deviations.
    pub threshold: f64,
}

impl Default for SpikeConfig {
    fn default() -> Self {
        Self { action: BadStepAction::Skip, window: 64, threshold: 6.0 }
    }
}

/// Ending a run once its evaluation loss no longer improves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EarlyStopping {
    /// Evaluations without improvement after which the run ends.
    pub patience: u64,
    /// The least decrease of the loss that is an improvement.
    pub min_delta: f64,
}

impl Default for EarlyStopping {
    fn default() -> Self {
        Self { patience: 3, min_delta: 0.0 }
    }
}
