//! Errors of building a backend.

use weightloom_checkpoint::{CheckpointError, Format};
use weightloom_errors::Hint;
use weightloom_hub::HubError;
use weightloom_tensor::{TensorError, UnknownDevice};

use crate::backend::UnknownBackend;
use crate::backend::api::ApiError;
use crate::backend::custom::CustomError;
use crate::error::BackendError;

/// Why a backend cannot be built. `key` is the key or argument to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum BuildError {
    #[error("`{key}`: {source}")]
    Device { key: String, source: UnknownDevice },
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("`{key}`: no such folder `{path}`")]
    NoAdapter { key: String, path: String },
    #[error("`{key}`: no adapter_config.json in `{path}`{}", found.as_ref().map_or_else(String::new, |found| format!(", only {found}")))]
    NoAdapterConfig { key: String, path: String, found: Option<String> },
    #[error("`{key}`: `{path}` is a {format} checkpoint, not an adapter")]
    NotAdapter { key: String, path: String, format: Format },
    #[error("`{key}`: {source}")]
    Adapter { key: String, source: CheckpointError },
    #[error("`{key}`: no such program `{path}`")]
    NoProgram { key: String, path: String },
    #[error("`{key}`: cannot start `{program}`: a suite may not start programs unless you allow it")]
    ProgramDenied { key: String, program: String },
    #[error("`{key}`: {source}")]
    Model { key: String, source: Box<HubError> },
    #[error("cannot compare {base} and {tuned}: they tokenize {text:?} differently")]
    TokenizersDiffer { base: String, tuned: String, text: String },
    #[error("`{key}`: {source}")]
    Api { key: String, source: ApiError },
    #[error("`{key}`: {source}")]
    Custom { key: String, source: CustomError },
    #[error("`{key}`: no such folder `{path}`")]
    NoEmbeddingModel { key: String, path: String },
    #[error("`{key}`: `{other}` names another embedding model")]
    TwoEmbeddingModels { key: String, other: String },
    #[error("`{key}`: {source}")]
    Kind { key: String, source: UnknownBackend },
    #[error("`{key}`: {message}")]
    Options { key: String, message: String },
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Hint for BuildError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Device { source, .. } => source.hint(),
            Self::Tensor(error) => error.hint(),
            Self::NoAdapterConfig { found: Some(_), .. } => {
                Some("copy adapter_config.json, which has rank and scale, from the training run".to_owned())
            }
            Self::NoAdapter { key, .. } | Self::NoAdapterConfig { key, .. } if is_suite_key(key) => {
                Some("name the folder with adapter_config.json; paths are relative to the suite".to_owned())
            }
            Self::NotAdapter { key, .. } if is_suite_key(key) => Some(format!(
                "name the folder with adapter_config.json, or set the model as `{}`",
                key.replace(".adapter", ".base")
            )),
            Self::NoAdapter { .. } | Self::NoAdapterConfig { .. } | Self::NotAdapter { .. } => {
                Some("name the folder with adapter_config.json".to_owned())
            }
            Self::NoProgram { .. } => {
                Some("name an executable file; paths are relative to the suite".to_owned())
            }
            Self::ProgramDenied { .. } => Some(
                "read the suite and the program; if you trust them, add --allow-programs (in Rust, set \
                 `programs` of the builder to `Programs::Allow`)"
                    .to_owned(),
            ),
            Self::TokenizersDiffer { .. } => Some(
                "compare a model with the one it was tuned from, with the same tokenizer.json; \
                 for other models, compare generated text through servers with `kind: api`"
                    .to_owned(),
            ),
            Self::NoEmbeddingModel { .. } => Some(
                "download the sentence-embedding model and name its folder, relative to the suite; or remove the \
                 key to embed with the base"
                    .to_owned(),
            ),
            Self::TwoEmbeddingModels { .. } => Some("use one embedding model in a suite".to_owned()),
            Self::Adapter { source, .. } => source.hint(),
            Self::Model { source, .. } => source.hint(),
            Self::Api { source, .. } => source.hint(),
            Self::Custom { source, .. } => source.hint(),
            Self::Kind { source, .. } => source.hint(),
            Self::Options { .. } => None,
            Self::Backend(error) => error.hint(),
        }
    }
}

/// Whether a key is one of a suite file, rather than an argument.
fn is_suite_key(key: &str) -> bool {
    key.contains('.')
}
