//! What can be wrong with a training run.

use shardloom_checkpoint::CheckpointError;
use shardloom_dtensor::DTensorError;
use shardloom_gang::{GangError, GangsError};
use shardloom_hub::HubError;
use shardloom_layout::Hint;
use shardloom_nn::NnError;
use shardloom_tensor::TensorError;

/// Why a run was not done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A stage that this rank does not have.
    #[error("rank {rank} was to compute stage {number}, which it does not have")]
    NoStage {
        /// The stage.
        number: usize,
        /// The rank.
        rank: usize,
    },
    /// A schedule that uses what is not there.
    #[error("the schedule uses micro-batch {micro} of stage {stage} before it is there")]
    Schedule {
        /// The stage.
        stage: usize,
        /// The micro-batch.
        micro: usize,
    },
    /// Another number of micro-batches than the schedule is for.
    #[error("a step of {expected} micro-batches was given {found}")]
    MicroBatches {
        /// Those of the schedule.
        expected: usize,
        /// Those given.
        found: usize,
    },
    /// Something is trained that nothing depends on.
    #[error("the loss does not depend on `{name}`")]
    NoGradient {
        /// The parameter.
        name: String,
    },
    /// A checkpoint that does not say how far a run was.
    #[error("{location} does not tell how far the run was: {message}")]
    Progress {
        /// The checkpoint.
        location: String,
        /// What is wrong.
        message: String,
    },
    /// A checkpoint of a run with another optimizer.
    #[error("{location} was trained with `{found}`, and the run asks for `{asked}`")]
    OtherOptimizer {
        /// The checkpoint.
        location: String,
        /// Its optimizer.
        found: String,
        /// The one asked for.
        asked: &'static str,
    },
    /// The model was not found or not loaded.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The model does not compute.
    #[error(transparent)]
    Nn(#[from] NnError),
    /// A checkpoint was not read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Ranks did not come together.
    #[error(transparent)]
    Gangs(#[from] GangsError),
    /// Ranks could not act together.
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl From<DTensorError> for TrainError {
    fn from(error: DTensorError) -> Self {
        Self::Nn(error.into())
    }
}

impl From<TensorError> for TrainError {
    fn from(error: TensorError) -> Self {
        Self::Nn(error.into())
    }
}

impl Hint for TrainError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoGradient { .. } => Some("name it in `model.freeze_modules`".to_owned()),
            Self::Hub(error) => error.hint(),
            Self::Nn(error) => error.hint(),
            Self::Checkpoint(error) => error.hint(),
            Self::Gangs(error) => error.hint(),
            Self::Gang(error) => error.hint(),
            Self::Progress { .. } => Some("go on from a checkpoint that a training run saved".to_owned()),
            Self::OtherOptimizer { found, .. } => Some(format!(
                "set `train.optimizer.kind: {found}`, or begin a new run with `model.weights_path`"
            )),
            Self::MicroBatches { expected, .. } => Some(format!("give {expected} to every step")),
            Self::NoStage { .. } | Self::Schedule { .. } => None,
        }
    }
}
