//! Why a run cannot be looked at.

use weightloom_checkpoint::plan::PlanError;
use weightloom_dtensor::DTensorError;
use weightloom_errors::Hint;
use weightloom_gang::GangsError;
use weightloom_layout::{LayoutError, MeshError};
use weightloom_nn::NnError;
use weightloom_tensor::TensorError;

use crate::optimizer::{OptimizerError, PatternError};
use crate::pipeline::{CostError, PipelineError};

/// Why a run cannot be looked at. It could not be done either.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DryError {
    /// Rows that ranks cannot share evenly.
    #[error("a batch of {rows} rows cannot be shared evenly by {sharers} data-parallel ranks")]
    Rows { rows: usize, sharers: usize },
    /// Rows of a rank that do not come in even parts.
    #[error("the {rows} rows of a rank cannot be computed {at_once} at a time")]
    MicroBatches { rows: usize, at_once: usize },
    /// Rows without tokens.
    #[error("`data.max_seq_len` is 0")]
    NoTokens,
    /// Not as many stages as ranks have places for.
    #[error("{found} stages were given for {ranks} ranks with {chunks} each")]
    Stages { found: usize, ranks: usize, chunks: usize },
    /// An adapter of modules that the model does not have.
    #[error("the model has no module that ends in `{target}`")]
    Target { target: String, near: Option<String> },
    /// Ranks that cannot be shared out like this.
    #[error(transparent)]
    Gangs(#[from] GangsError),
    /// A pipeline that cannot be.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A pipeline that cannot be timed.
    #[error(transparent)]
    Timeline(#[from] CostError),
    /// Settings of an optimizer that cannot be.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// A pattern that cannot be.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A model that cannot be.
    #[error(transparent)]
    Nn(#[from] NnError),
    /// A save that cannot be planned.
    #[error(transparent)]
    Saving(#[from] PlanError),
}

impl From<DTensorError> for DryError {
    fn from(error: DTensorError) -> Self {
        Self::Nn(error.into())
    }
}

impl From<TensorError> for DryError {
    fn from(error: TensorError) -> Self {
        Self::Nn(error.into())
    }
}

impl From<LayoutError> for DryError {
    fn from(error: LayoutError) -> Self {
        Self::Nn(error.into())
    }
}

impl From<MeshError> for DryError {
    fn from(error: MeshError) -> Self {
        Self::Gangs(error.into())
    }
}

impl Hint for DryError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Rows { rows, sharers } => {
                let fitting = rows.next_multiple_of((*sharers).max(1)).max(*sharers);
                Some(format!("set `train.global_batch_size` to {fitting}, or use fewer data-parallel ranks"))
            }
            Self::MicroBatches { rows, .. } => {
                let all: Vec<String> = (1..=*rows)
                    .filter(|part| rows.is_multiple_of(*part))
                    .take(16)
                    .map(|part| part.to_string())
                    .collect();
                Some(format!("`train.micro_batch_size` can be {}", all.join(", ")))
            }
            Self::NoTokens => Some("set `data.max_seq_len` to at least 1".to_owned()),
            Self::Stages { ranks, chunks, .. } => {
                Some(format!("cut the model into {} stages", ranks.saturating_mul(*chunks)))
            }
            Self::Target { near, .. } => near.as_ref().map(|near| format!("did you mean `{near}`?")),
            Self::Gangs(error) => error.hint(),
            Self::Pipeline(error) => error.hint(),
            Self::Timeline(error) => error.hint(),
            Self::Optimizer(error) => error.hint(),
            Self::Pattern(error) => error.hint(),
            Self::Nn(error) => error.hint(),
            Self::Saving(error) => error.hint(),
        }
    }
}
