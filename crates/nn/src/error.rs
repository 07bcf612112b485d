//! What can be wrong with a model.

use shardloom_dtensor::DTensorError;
use shardloom_layout::{Hint, LayoutError, MeshError, Shape, ShapeError};
use shardloom_tensor::TensorError;

use crate::config::ConfigError;
use crate::plan::PlanError;
use crate::sample::SamplingError;

/// Why something was not done with a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
    Stages {
        /// The stage, from 0.
        stage: usize,
        /// How many there are.
        stages: usize,
        /// Layers.
        layers: usize,
    },
    /// A parameter that is not there.
    #[error("the parameter `{name}` is missing")]
    MissingParameter {
        /// Its name.
        name: String,
    },
    /// A parameter of another shape.
    #[error("the parameter `{name}` is {found}, but {expected} is expected")]
    ParameterShape {
        /// Its name.
        name: String,
        /// Its shape.
        found: Shape,
        /// The shape that fits.
        expected: Shape,
    },
    /// A parameter that the model does not have.
    #[error("the model has no parameter `{name}`")]
    UnknownParameter {
        /// Its name.
        name: String,
        /// The name that it most likely means.
        near: Option<String>,
    },
    /// A text longer than the model's positions.
    #[error("{asked} positions are needed, but the model has {most}")]
    TooLong {
        /// Positions needed.
        asked: usize,
        /// Positions there are.
        most: usize,
    },
    /// A token that there is not.
    #[error("token {token} is not among the {vocabulary} that the model knows")]
    UnknownToken {
        /// The token.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
    /// No tokens at all.
    #[error("prompt {row} has no tokens")]
    EmptyPrompt {
        /// The prompt, from 0.
        row: usize,
    },
    /// A cache that does not fit what it is used for.
    #[error("the cache holds {found} rows, but {asked} were given")]
    CacheRows {
        /// Rows it has.
        found: usize,
        /// Rows given.
        asked: usize,
    },
    /// Changes of other rows than there are.
    #[error("changes of {found} rows were given for {asked}")]
    ChangedRows {
        /// Rows that changes were given for.
        found: usize,
        /// Rows there are.
        asked: usize,
    },
    /// A text under a change that was not given.
    #[error("text {text} is read with change {change}, but there are {count}")]
    UnknownChange {
        /// The text, from 0.
        text: usize,
        /// The change, from 0.
        change: usize,
        /// How many there are.
        count: usize,
    },
    /// A token of a text that is not so long.
    #[error("text {text} has {length} tokens, but number {place} was asked for")]
    UnknownPlace {
        /// The text, from 0.
        text: usize,
        /// Its tokens.
        length: usize,
        /// The token, from 0.
        place: usize,
    },
    /// Rows of different lengths, continued by several tokens at once.
    #[error("rows that differ in length can be continued by one token at a time, not by {asked}")]
    UnevenRows {
        /// Tokens given for each.
        asked: usize,
    },
    /// Logits that are no numbers.
    #[error("the model gave {found} for prompt {row}")]
    NotFinite {
        /// The prompt, from 0.
        row: usize,
        /// What it gave.
        found: String,
    },
    /// A part of an adapter made anew in another size.
    #[error("{found} numbers were made for `{name}`, which has {expected}")]
    PieceLength {
        /// The module or parameter.
        name: String,
        /// Numbers made.
        found: usize,
        /// Numbers it has.
        expected: usize,
    },
    /// A stage used as if it were another.
    #[error("layers {start} to {end} of {of} cannot {what}")]
    WrongStage {
        /// The first layer.
        start: usize,
        /// Behind the last.
        end: usize,
        /// Layers in all.
        of: usize,
        /// What was asked.
        what: &'static str,
    },
    /// An adapter for a module that there is not.
    #[error("the adapter changes `{module}`, which the model does not have")]
    UnknownModule {
        /// The module.
        module: String,
        /// The module that it most likely means.
        near: Option<String>,
    },
    /// An adapter whose matrices do not fit a module.
    #[error("the adapter's {what} for `{module}` is {found}, but {expected} is expected")]
    AdapterShape {
        /// The module.
        module: String,
        /// Which matrix.
        what: &'static str,
        /// Its shape.
        found: Shape,
        /// The shape that fits.
        expected: Shape,
    },
    /// Distributed tensors.
    #[error(transparent)]
    DTensor(#[from] DTensorError),
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
                Some("compute in f32, and check the weights with `shardloom verify`".to_owned())
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
                Self::DTensor(error.into())
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

impl NnError {
    /// As it passes through a region that is computed again.
    pub(crate) fn into_dtensor(self) -> DTensorError {
        match self {
            Self::DTensor(error) => error,
            other => DTensorError::Rule { op: "a layer", reason: other.to_string() },
        }
    }
}
