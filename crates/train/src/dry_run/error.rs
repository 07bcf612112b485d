//! Errors of dry runs.

use weightloom_checkpoint::plan::PlanError;
use weightloom_dtensor::DTensorError;
use weightloom_errors::Hint;
use weightloom_gang::GangsError;
use weightloom_layout::{LayoutError, MeshError};
use weightloom_nn::NnError;
use weightloom_tensor::TensorError;

use crate::config::divisors;
use crate::data::DataError;
use crate::lora_target::UnknownTarget;
use crate::loss::LossError;
use crate::optimizer::{OptimizerError, PatternError};
use crate::pipeline::{CostError, PipelineError};

/// A run that is not possible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DryRunError {
    #[error("cannot split a batch of {rows} rows evenly over {dp} data-parallel ranks")]
    Rows { rows: usize, dp: usize },
    #[error("cannot split the {rows} rows of a rank into micro-batches of {at_once}")]
    MicroBatches { rows: usize, at_once: usize },
    #[error("`data.max_seq_len` is 0")]
    NoTokens,
    #[error("got {found} stages for {ranks} ranks with {chunks} each")]
    Stages { found: usize, ranks: usize, chunks: usize },
    #[error(transparent)]
    Target(#[from] UnknownTarget),
    #[error(transparent)]
    Gangs(#[from] GangsError),
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    #[error(transparent)]
    Timeline(#[from] CostError),
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    #[error(transparent)]
    Loss(LossError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Nn(#[from] NnError),
    #[error(transparent)]
    Checkpoint(#[from] PlanError),
}

impl From<LossError> for DryRunError {
    fn from(error: LossError) -> Self {
        match error {
            LossError::Nn(error) => Self::Nn(error),
            error => Self::Loss(error),
        }
    }
}

impl From<DTensorError> for DryRunError {
    fn from(error: DTensorError) -> Self {
        Self::Nn(error.into())
    }
}

impl From<TensorError> for DryRunError {
    fn from(error: TensorError) -> Self {
        Self::Nn(error.into())
    }
}

impl From<LayoutError> for DryRunError {
    fn from(error: LayoutError) -> Self {
        Self::Nn(error.into())
    }
}

impl From<MeshError> for DryRunError {
    fn from(error: MeshError) -> Self {
        Self::Gangs(error.into())
    }
}

impl Hint for DryRunError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Rows { rows, dp } => {
                let fitting = rows.next_multiple_of((*dp).max(1)).max(*dp);
                Some(format!("set `train.global_batch_size` to {fitting}, or use fewer data-parallel ranks"))
            }
            Self::MicroBatches { rows, .. } => {
                Some(format!("set `train.micro_batch_size` to one of {}", divisors(*rows)))
            }
            Self::NoTokens => Some("set `data.max_seq_len` to at least 1".to_owned()),
            Self::Stages { ranks, chunks, .. } => {
                Some(format!("split the model into {} stages", ranks.saturating_mul(*chunks)))
            }
            Self::Target(error) => error.hint(),
            Self::Gangs(error) => error.hint(),
            Self::Pipeline(error) => error.hint(),
            Self::Timeline(error) => error.hint(),
            Self::Optimizer(error) => error.hint(),
            Self::Loss(error) => error.hint(),
            Self::Data(error) => error.hint(),
            Self::Pattern(error) => error.hint(),
            Self::Nn(error) => error.hint(),
            Self::Checkpoint(error) => error.hint(),
        }
    }
}
