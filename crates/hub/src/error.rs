//! What can be wrong with finding or loading a model.

use std::fmt;

use weightloom_checkpoint::CheckpointError;
use weightloom_errors::Hint;
use weightloom_gang::GangsError;
use weightloom_layout::{DType, Shape};
use weightloom_nn::NnError;

use crate::adapter::AdapterError;
use crate::cards::{AddressError, CardError};
use crate::config::ConfigError;
use crate::describe::DescribeError;
use crate::families::FamilyError;
use crate::fetch::FetchError;
use crate::text::{ChatError, TextError};

/// Why a model was not found or not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum HubError {
    /// No model of that name.
    #[error("no model is called `{name}`")]
    NotKnown { name: String, near: Vec<String> },
    /// A card of another family than asked for.
    #[error("the family of `{card}` is expected to be {expected}, but is {found} instead")]
    OtherFamily { card: String, expected: String, found: String },
    /// A checkpoint that does not say what it is.
    #[error("there is no config.json in {location}, and no card says what the model is")]
    NoConfig { location: String },
    /// A file that should be JSON.
    #[error("{file} is no JSON map: {message}")]
    NotJson { file: String, message: String },
    /// An encoder of sentences that cannot be used.
    #[error(transparent)]
    Sentence(#[from] crate::sentence::SentenceError),
    /// Cards that use each other's tokenizers.
    #[error("card `{card}` uses a tokenizer that leads back to itself")]
    TokenizerLoop { card: String },
    /// A model that is not made for chats.
    #[error("the model has no chat template")]
    NoChatTemplate,
    /// A card.
    #[error(transparent)]
    Card(#[from] CardError),
    /// Where a model is.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Fetching files.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A tokenizer or its companions.
    #[error(transparent)]
    Text(TextError),
    /// A conversation.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Both gangs and a device were given.
    #[error("both gangs and a device were given, but gangs have devices of their own")]
    GangsAndDevice,
    /// A device without memory, where data is needed.
    #[error("a model cannot be loaded to the meta device, which has no memory")]
    MetaDevice,
    /// A dtype that models are not computed in.
    #[error("models cannot be loaded as {dtype}")]
    DType { dtype: DType },
    /// A checkpoint that is not of the model.
    #[error("the checkpoint at {location} does not fit the model: {misfit}")]
    Incompatible { location: String, misfit: Misfit },
    /// A family's configuration.
    #[error("{about}: {source}")]
    Config { about: String, source: ConfigError },
    /// A family or arch.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// An adapter.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A family that is described in a file.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model.
    #[error(transparent)]
    Nn(#[from] NnError),
    /// The gangs.
    #[error(transparent)]
    Gangs(#[from] GangsError),
}

impl Hint for HubError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotKnown { near, .. } if near.is_empty() => Some(
                "`weightloom models list` shows all; a folder, a file or hf://org/name works as well"
                    .to_owned(),
            ),
            Self::NotKnown { near, .. } => Some(format!("did you mean {}?", near.join(" or "))),
            Self::OtherFamily { found, .. } => {
                Some(format!("use the hub of {found}, or load it by name alone"))
            }
            Self::Sentence(error) => error.hint(),
            Self::NoConfig { .. } => {
                Some("put the model's config.json beside it, or write a card for it".to_owned())
            }
            Self::NotJson { .. } | Self::TokenizerLoop { .. } => None,
            Self::NoChatTemplate => Some("give it a plain prompt, or use its instruct version".to_owned()),
            Self::Card(error) => error.hint(),
            Self::Address(error) => error.hint(),
            Self::Fetch(error) => error.hint(),
            Self::Text(error) => error.hint(),
            Self::Chat(error) => error.hint(),
            Self::GangsAndDevice => Some("leave one of them out".to_owned()),
            Self::MetaDevice => Some("leave the device out, or create a new model without data".to_owned()),
            Self::DType { .. } => Some("use f32, bf16, f16 or f64".to_owned()),
            Self::Incompatible { misfit, .. } => misfit.hint(),
            Self::Config { source, .. } => source.hint(),
            Self::Family(error) => error.hint(),
            Self::Adapter(error) => error.hint(),
            Self::Describe(error) => error.hint(),
            Self::Checkpoint(error) => error.hint(),
            Self::Nn(error) => error.hint(),
            Self::Gangs(error) => error.hint(),
        }
    }
}

/// Every key of a checkpoint that does not fit a model, and every key that is
/// not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misfit {
    /// Keys that the model needs, with what they most likely are called in the
    /// checkpoint.
    pub missing: Vec<(String, Option<String>)>,
    /// Keys that the model has no use for.
    pub unexpected: Vec<String>,
    /// Keys of other shapes: found, and expected.
    pub misshapen: Vec<(String, Shape, Shape)>,
}

impl Misfit {
    /// Whether all fits.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.misshapen.is_empty()
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.missing.len(), "missing"),
            (self.unexpected.len(), "unexpected"),
            (self.misshapen.len(), "of another shape"),
        ];
        let told: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {} {what}", if *count == 1 { "key" } else { "keys" }))
            .collect();
        write!(f, "{}", told.join(", "))?;
        for (key, near) in &self.missing {
            write!(f, "\n  missing `{key}`")?;
            if let Some(near) = near {
                write!(f, " (there is `{near}`)")?;
            }
        }
        for key in &self.unexpected {
            write!(f, "\n  unexpected `{key}`")?;
        }
        for (key, found, expected) in &self.misshapen {
            write!(f, "\n  `{key}` is {found}, but {expected} is expected")?;
        }
        Ok(())
    }
}

impl Hint for Misfit {
    fn hint(&self) -> Option<String> {
        let of_lora = self.unexpected.iter().any(|key| key.contains("lora_"));
        if of_lora {
            return Some("this is an adapter: load its base model, and give this as the adapter".to_owned());
        }
        (!self.misshapen.is_empty() && self.missing.is_empty() && self.unexpected.is_empty())
            .then(|| "the configuration is of another size than the checkpoint".to_owned())
    }
}
