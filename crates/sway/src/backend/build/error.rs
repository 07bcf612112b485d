//! Why a plan has nothing that answers.

use weightloom_checkpoint::{CheckpointError, Format};
use weightloom_errors::Hint;
use weightloom_hub::HubError;

use super::DEVICES;
use crate::backend::api::ApiError;
use crate::backend::custom::CustomError;
use crate::error::BackendError;

/// Why there is nothing that answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum BuildError {
    /// A device that is not there.
    #[error("`{key}`: this program does not compute on `{found}`")]
    Device { key: String, found: String },
    /// An adapter that is not there.
    #[error("`{key}`: there is no folder {path}")]
    NoAdapter { key: String, path: String },
    /// A folder that does not say what its adapter is.
    #[error("`{key}`: there is no adapter_config.json in {path}{}", found.as_ref().map_or_else(String::new, |found| format!(", only {found}")))]
    NoAdapterConfig { key: String, path: String, found: Option<String> },
    /// A folder that is no adapter's.
    #[error("`{key}`: {path} holds no adapter, but a checkpoint of kind {format}")]
    NotAdapter { key: String, path: String, format: Format },
    /// An adapter that cannot be read.
    #[error("`{key}`: {source}")]
    Adapter { key: String, source: CheckpointError },
    /// A program that is not there.
    #[error("`{key}`: there is no program {path}")]
    NoProgram { key: String, path: String },
    /// A model that is not found or is none.
    #[error("`{key}`: {source}")]
    Model { key: String, source: Box<HubError> },
    /// Two models that have other tokens.
    #[error("{base} and {tuned} cut texts into other tokens, such as {text:?}, so they cannot be compared")]
    OtherTokens {
        base: String,
        tuned: String,
        /// The beginning of a text that they cut differently.
        text: String,
    },
    /// A server that cannot be asked.
    #[error("`{key}`: {source}")]
    Api { key: String, source: ApiError },
    /// Something of the user's own that cannot be used.
    #[error("`{key}`: {source}")]
    Custom { key: String, source: CustomError },
    /// A backend that did not come to be.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Hint for BuildError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Device { .. } => Some(format!("write one of {}", DEVICES.join(", "))),
            Self::NoAdapterConfig { found: Some(_), .. } => Some(
                "copy adapter_config.json from where the adapter was trained: it tells rank and scale"
                    .to_owned(),
            ),
            Self::NoAdapter { key, .. } | Self::NoAdapterConfig { key, .. } if is_of_suite(key) => Some(
                "name the folder with adapter_config.json; relative ones are told from the suite".to_owned(),
            ),
            Self::NoAdapter { .. } | Self::NoAdapterConfig { .. } => {
                Some("name the folder with adapter_config.json".to_owned())
            }
            Self::NotAdapter { key, .. } if !is_of_suite(key) => {
                Some("name the folder with adapter_config.json".to_owned())
            }
            Self::NotAdapter { key, .. } => Some(format!(
                "name the folder with adapter_config.json, or give the model as `{}`",
                key.replace(".adapter", ".base")
            )),
            Self::NoProgram { .. } => {
                Some("name a file that can be run; relative ones are told from the suite".to_owned())
            }
            Self::OtherTokens { .. } => Some(
                "compare a model with what it was tuned from, and give both the same tokenizer.json; \
                 of other models, `kind: api` compares what is written, by servers for both"
                    .to_owned(),
            ),
            Self::Adapter { source, .. } => source.hint(),
            Self::Model { source, .. } => source.hint(),
            Self::Api { source, .. } => source.hint(),
            Self::Custom { source, .. } => source.hint(),
            Self::Backend(error) => error.hint(),
        }
    }
}

/// Whether a key is one of a suite's file, and no argument of a command.
fn is_of_suite(key: &str) -> bool {
    key.contains('.')
}
