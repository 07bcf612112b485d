//! Errors of models.

use weightloom_dtensor::DTensorError;
use weightloom_errors::{Hint, did_you_mean};
use weightloom_layout::{DType, LayoutError, MeshError, Shape, ShapeError};
use weightloom_tensor::TensorError;

use crate::config::ConfigError;
use crate::plan::PlanError;
use crate::sampling::SamplingError;

/// Why a model cannot be built or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum NnError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error("cannot cut stage {stage} of {stages} from {layers} layers")]
    Stages { stage: usize, stages: usize, layers: usize },
    #[error("the parameters of `{model}` do not fit together: `{parameter}` is {problem}")]
    StageParameter { model: String, parameter: String, problem: &'static str },
    #[error("missing parameter `{name}`")]
    MissingParameter { name: String },
    #[error("cannot use parameter `{name}` of shape {found}: expected {expected}")]
    ParameterShape { name: String, found: Shape, expected: Shape },
    #[error("unknown parameter `{name}`")]
    UnknownParameter { name: String, near: Option<String> },
    #[error("cannot process {needed} positions: the model has {available}")]
    TooLong { needed: usize, available: usize },
    #[error("token {token} is outside the vocabulary of {vocabulary} tokens")]
    UnknownToken { token: u32, vocabulary: usize },
    #[error("prompt {row} has no tokens")]
    EmptyPrompt { row: usize },
    #[error("cannot use a cache of {found} rows for a batch of {expected}")]
    CacheRows { found: usize, expected: usize },
    #[error("cannot apply adapters of {found} rows to a batch of {expected}")]
    AdapterRows { found: usize, expected: usize },
    #[error("sequence {sequence} uses adapter {adapter}, but there are {count}")]
    UnknownAdapter { sequence: usize, adapter: usize, count: usize },
    #[error("cannot read position {position} of sequence {sequence}: it has {length} tokens")]
    UnknownPosition { sequence: usize, length: usize, position: usize },
    #[error("cannot append {time} tokens to rows of different lengths")]
    UnevenRows { time: usize },
    #[error("cannot pack rows by document starts of {found} {dtype}: expected {expected} i64")]
    DocumentStarts { found: Shape, dtype: DType, expected: Shape },
    #[error("cannot append packed rows to a cache")]
    PackedCache,
    #[error("the model computed {found} for prompt {row}")]
    NotFinite { row: usize, found: String },
    #[error("cannot replace the {expected} values of `{name}` by {found}")]
    TensorLength { name: String, found: usize, expected: usize },
    #[error("a stage with layers {start}..{end} of {of} cannot {action}")]
    WrongStage { start: usize, end: usize, of: usize, action: &'static str },
    #[error("the adapter updates `{module}`, which the model does not have")]
    UnknownModule { module: String, near: Option<String> },
    #[error("cannot apply an adapter to `{model}`: it computes without adapters")]
    NoAdapters { model: String },
    #[error("cannot use the adapter's {tensor} of shape {found} for `{module}`: expected {expected}")]
    AdapterShape { module: String, tensor: &'static str, found: Shape, expected: Shape },
    #[error(transparent)]
    DTensor(DTensorError),
}

impl Hint for NnError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Config(error) => return error.hint(),
            Self::Plan(error) => return error.hint(),
            Self::Sampling(error) => return error.hint(),
            Self::DTensor(error) => return error.hint(),
            Self::Stages { layers, .. } => return Some(format!("use pp=1 to pp={layers}")),
            Self::UnknownParameter { near, .. } => return did_you_mean(near.as_deref()),
            Self::UnknownModule { near: Some(near), .. } => {
                return Some(format!("use the adapter's base model; this one has `{near}`"));
            }
            Self::TooLong { available, .. } => {
                return Some(format!("shorten the prompt or generate fewer tokens: {available} in total"));
            }
            Self::UnknownModule { near: None, .. } | Self::AdapterShape { .. } => {
                "use the adapter's base model"
            }
            Self::NoAdapters { .. } => "merge the adapter into the weights with `weightloom export`",
            Self::UnevenRows { .. } => "append one token at a time",
            Self::NotFinite { .. } => "compute in f32, and check the weights with `weightloom verify`",
            Self::EmptyPrompt { .. } => "start with the beginning-of-text token",
            Self::UnknownToken { .. } => "use the model's own tokenizer",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

macro_rules! from_through_dtensor {
    ($($error:ty),*) => {$(
        impl From<$error> for NnError {
            fn from(error: $error) -> Self {
                DTensorError::from(error).into()
            }
        }
    )*};
}

from_through_dtensor!(TensorError, LayoutError, MeshError);

impl From<ShapeError> for NnError {
    fn from(error: ShapeError) -> Self {
        Self::DTensor(TensorError::from(error).into())
    }
}

impl From<DTensorError> for NnError {
    /// Recovers the error of a recomputed layer.
    fn from(error: DTensorError) -> Self {
        let inner = match &error {
            DTensorError::Tensor(error) => error.function_source::<Self>(),
            _ => None,
        };
        inner.cloned().unwrap_or(Self::DTensor(error))
    }
}

impl From<NnError> for DTensorError {
    /// The error of a recomputed layer. Converting back recovers it.
    fn from(error: NnError) -> Self {
        match error {
            NnError::DTensor(error) => error,
            other => TensorError::from_function("recompute", other).into(),
        }
    }
}
