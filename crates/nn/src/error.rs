//! What can be wrong with a model.

use weightloom_dtensor::DTensorError;
use weightloom_errors::Hint;
use weightloom_layout::{LayoutError, MeshError, Shape, ShapeError};
use weightloom_tensor::TensorError;

use crate::config::ConfigError;
use crate::plan::PlanError;
use crate::sample::SamplingError;

/// Why something was not done with a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum NnError {
    /// Options that do not go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A sharding plan that does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// How to draw tokens.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// More stages than layers.
    #[error("stage {stage} of {stages} cannot be cut from {layers} layers")]
    Stages { stage: usize, stages: usize, layers: usize },
    /// A parameter that is not there.
    #[error("the parameter `{name}` is missing")]
    MissingParameter { name: String },
    /// A parameter of another shape.
    #[error("the parameter `{name}` is {found}, but {expected} is expected")]
    ParameterShape { name: String, found: Shape, expected: Shape },
    /// A parameter that the model does not have.
    #[error("the model has no parameter `{name}`")]
    UnknownParameter { name: String, near: Option<String> },
    /// A text longer than the model's positions.
    #[error("{asked} positions are needed, but the model has {most}")]
    TooLong { asked: usize, most: usize },
    /// A token that there is not.
    #[error("token {token} is not among the {vocabulary} that the model knows")]
    UnknownToken { token: u32, vocabulary: usize },
    /// No tokens at all.
    #[error("prompt {row} has no tokens")]
    EmptyPrompt { row: usize },
    /// A cache that does not fit what it is used for.
    #[error("the cache holds {found} rows, but {asked} were given")]
    CacheRows { found: usize, asked: usize },
    /// Changes of other rows than there are.
    #[error("changes of {found} rows were given for {asked}")]
    ChangedRows { found: usize, asked: usize },
    /// A text under a change that was not given.
    #[error("text {text} is read with change {change}, but there are {count}")]
    UnknownChange { text: usize, change: usize, count: usize },
    /// A token of a text that is not so long.
    #[error("text {text} has {length} tokens, but number {place} was asked for")]
    UnknownPlace { text: usize, length: usize, place: usize },
    /// Rows of different lengths, continued by several tokens at once.
    #[error("rows that differ in length can be continued by one token at a time, not by {asked}")]
    UnevenRows { asked: usize },
    /// Logits that are no numbers.
    #[error("the model gave {found} for prompt {row}")]
    NotFinite { row: usize, found: String },
    /// A part of an adapter made anew in another size.
    #[error("{found} numbers were made for `{name}`, which has {expected}")]
    PieceLength { name: String, found: usize, expected: usize },
    /// A stage used as if it were another.
    #[error("layers {start} to {end} of {of} cannot {what}")]
    WrongStage { start: usize, end: usize, of: usize, what: &'static str },
    /// An adapter for a module that there is not.
    #[error("the adapter changes `{module}`, which the model does not have")]
    UnknownModule { module: String, near: Option<String> },
    /// An adapter whose matrices do not fit a module.
    #[error("the adapter's {what} for `{module}` is {found}, but {expected} is expected")]
    AdapterShape { module: String, what: &'static str, found: Shape, expected: Shape },
    /// Distributed tensors.
    #[error(transparent)]
    DTensor(DTensorError),
}

impl Hint for NnError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.hint(),
            Self::Plan(error) => error.hint(),
            Self::Sampling(error) => error.hint(),
            Self::Stages { layers, .. } => Some(format!("pp can be 1 to {layers}")),
            Self::UnknownParameter { near, .. } => near.as_ref().map(|near| format!("write `{near}`")),
            Self::UnknownModule { near, .. } => {
                let like = near.as_ref().map_or_else(String::new, |near| format!("; this one has `{near}`"));
                Some(format!("use the model that the adapter was tuned from{like}"))
            }
            Self::AdapterShape { .. } => Some("use the model that the adapter was tuned from".to_owned()),
            Self::TooLong { most, .. } => Some(format!("shorten the text or generate less: {most} in all")),
            Self::NotFinite { .. } => {
                Some("compute in f32, and check the weights with `weightloom verify`".to_owned())
            }
            Self::EmptyPrompt { .. } => Some("begin with the beginning-of-text token".to_owned()),
            Self::UnknownToken { .. } => Some("use the tokenizer that belongs to the model".to_owned()),
            Self::DTensor(error) => error.hint(),
            _ => None,
        }
    }
}

macro_rules! through_dtensor {
    ($($error:ty),*) => {$(
        impl From<$error> for NnError {
            fn from(error: $error) -> Self {
                DTensorError::from(error).into()
            }
        }
    )*};
}

through_dtensor!(TensorError, LayoutError, MeshError);

impl From<ShapeError> for NnError {
    fn from(error: ShapeError) -> Self {
        Self::DTensor(TensorError::from(error).into())
    }
}

impl From<DTensorError> for NnError {
    /// The error of a recomputed region, or the distributed error.
    fn from(error: DTensorError) -> Self {
        let inner = match &error {
            DTensorError::Tensor(error) => error.function_source::<Self>(),
            _ => None,
        };
        inner.cloned().unwrap_or(Self::DTensor(error))
    }
}

impl NnError {
    /// As it passes through a region that is computed again.
    pub(crate) fn into_dtensor(self) -> DTensorError {
        match self {
            Self::DTensor(error) => error,
            other => TensorError::from_function("recompute", other).into(),
        }
    }
}
