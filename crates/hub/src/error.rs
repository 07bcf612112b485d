//! Errors of finding and loading models.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};
use weightloom_checkpoint::CheckpointError;
use weightloom_errors::{Hint, name_list, nearest};
use weightloom_gang::GangsError;
use weightloom_layout::{DType, Shape};
use weightloom_nn::NnError;

use crate::adapter::AdapterError;
use crate::cards::{AddressError, CardError};
use crate::config::ConfigError;
use crate::families::FamilyError;
use crate::fetch::FetchError;
use crate::locate::LocateError;
use crate::text::{ChatError, TextError};
use crate::yaml_family::YamlFamilyError;

/// Why a model cannot be found or loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum HubError {
    #[error("unknown model `{name}`")]
    Unknown { name: String, near: Vec<String> },
    #[error("model `{card}` is of family {found}, expected {expected}")]
    OtherFamily { card: String, expected: String, found: String },
    #[error(
        "unknown configuration of the model in {location}: neither `config.json` nor a card describes it"
    )]
    NoConfig { location: String },
    #[error("expected a JSON object in {file}: {message}")]
    NotJson { file: String, message: String },
    #[error(transparent)]
    SentenceEncoder(#[from] crate::sentence_encoder::SentenceEncoderError),
    #[error("cyclic `tokenizer` references from card `{card}`")]
    TokenizerCycle { card: String },
    #[error("the model has no chat template")]
    NoChatTemplate,
    #[error(transparent)]
    Card(#[from] CardError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Locate(#[from] LocateError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A name that may have been meant as a path.
    #[error("cannot find file or folder `{name}`, nor fetch it from Hugging Face")]
    BareRepository { name: String, source: FetchError },
    #[error(transparent)]
    Text(TextError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    TrainingData(#[from] crate::training_data::TrainingDataError),
    #[error("cannot load a model to the meta device: it has no memory")]
    MetaDevice,
    #[error("cannot load a model as {dtype}: unsupported for computation")]
    DType { dtype: DType },
    #[error("the checkpoint in {location} does not match the model: {mismatch}")]
    Incompatible { location: String, mismatch: CheckpointMismatch },
    #[error("{about}: {problem}")]
    Config { about: String, problem: ConfigError },
    #[error("models of family {family} are not `{expected}`, as the family says")]
    ModelType { family: String, expected: &'static str },
    #[error(transparent)]
    Family(#[from] FamilyError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    YamlFamily(#[from] YamlFamilyError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Nn(#[from] NnError),
    #[error(transparent)]
    Gangs(#[from] GangsError),
}

impl Hint for HubError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { near, .. } if near.is_empty() => {
                Some("run `weightloom models list`, or use a folder, a file or org/name".to_owned())
            }
            Self::Unknown { near, .. } => Some(format!("did you mean {}?", name_list(near, 3))),
            Self::OtherFamily { found, .. } => {
                Some(format!("use the hub of family {found}, or `Hub::load_model`"))
            }
            Self::SentenceEncoder(error) => error.hint(),
            Self::NoConfig { .. } => Some("add the model's `config.json`, or write a card".to_owned()),
            Self::NotJson { .. } | Self::TokenizerCycle { .. } | Self::ModelType { .. } => None,
            Self::NoChatTemplate => {
                Some("use a plain prompt, or the instruct version of the model".to_owned())
            }
            Self::Card(error) => error.hint(),
            Self::Address(error) => error.hint(),
            Self::Locate(error) => error.hint(),
            Self::BareRepository { name, source } => match near_path(Path::new(name)) {
                Some(near) => Some(format!("did you mean the folder `{near}`?")),
                None => source.hint(),
            },
            Self::Fetch(error) => error.hint(),
            Self::Text(error) => error.hint(),
            Self::Chat(error) => error.hint(),
            Self::TrainingData(error) => error.hint(),
            Self::MetaDevice => Some("remove the device, or create a meta model".to_owned()),
            Self::DType { .. } => Some("use f32, bf16, f16 or f64".to_owned()),
            Self::Incompatible { mismatch, .. } => mismatch.hint(),
            Self::Config { problem, .. } => problem.hint(),
            Self::Family(error) => error.hint(),
            Self::Adapter(error) => error.hint(),
            Self::YamlFamily(error) => error.hint(),
            Self::Checkpoint(error) => error.hint(),
            Self::Nn(error) => error.hint(),
            Self::Gangs(error) => error.hint(),
        }
    }
}

/// The path beside a missing one that has a similar name.
fn near_path(missing: &Path) -> Option<String> {
    let (folder, name) = (missing.parent()?, missing.file_name()?.to_str()?);
    let beside = std::fs::read_dir(folder).ok()?;
    let names: Vec<String> =
        beside.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let near = nearest(name, names.iter().map(String::as_str))?;
    Some(folder.join(near).display().to_string())
}

/// All differences between the tensors of a checkpoint and of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointMismatch {
    /// Required keys that the checkpoint lacks, with a similar key that it has.
    pub missing: Vec<(String, Option<String>)>,
    /// Keys that the model does not have.
    pub unexpected: Vec<String>,
    /// Keys with their found and expected shapes.
    pub wrong_shape: Vec<(String, Shape, Shape)>,
}

impl CheckpointMismatch {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.wrong_shape.is_empty()
    }

    /// Parameters of the model that the checkpoint does not provide.
    pub fn initialized(&self) -> impl Iterator<Item = &str> {
        let missing = self.missing.iter().map(|(key, _)| key.as_str());
        missing.chain(self.wrong_shape.iter().map(|(key, _, _)| key.as_str()))
    }

    /// One line for each tensor of a model that was loaded all the same: what was
    /// done with it.
    pub fn outcomes(&self) -> Vec<String> {
        let missing = self.missing.iter().map(|(key, near)| {
            let near = near.as_ref().map_or_else(String::new, |near| format!("; found `{near}`"));
            format!("initialized `{key}`: missing in the checkpoint{near}")
        });
        let shapes = self.wrong_shape.iter().map(|(key, found, expected)| {
            format!("initialized `{key}`: has shape {found} in the checkpoint, expected {expected}")
        });
        let unexpected =
            self.unexpected.iter().map(|key| format!("ignored `{key}`: unexpected in the checkpoint"));
        missing.chain(shapes).chain(unexpected).collect()
    }
}

/// As lists of keys, and of shapes as lists of sizes.
impl Serialize for CheckpointMismatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WrongShape<'a> {
            key: &'a str,
            found: &'a [usize],
            expected: &'a [usize],
        }
        let missing: Vec<&str> = self.missing.iter().map(|(key, _)| key.as_str()).collect();
        let shapes = self.wrong_shape.iter();
        let shapes: Vec<WrongShape<'_>> =
            shapes.map(|(key, found, expected)| WrongShape { key, found, expected }).collect();
        let mut map = serializer.serialize_struct("CheckpointMismatch", 3)?;
        map.serialize_field("missing", &missing)?;
        map.serialize_field("unexpected", &self.unexpected)?;
        map.serialize_field("wrong_shape", &shapes)?;
        map.end()
    }
}

impl fmt::Display for CheckpointMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.missing.len(), "missing"),
            (self.unexpected.len(), "unexpected"),
            (self.wrong_shape.len(), "with the wrong shape"),
        ];
        let parts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {} {what}", if *count == 1 { "key" } else { "keys" }))
            .collect();
        write!(f, "{}", parts.join(", "))?;
        for (key, near) in &self.missing {
            write!(f, "\n  missing `{key}`")?;
            if let Some(near) = near {
                write!(f, " (found `{near}`)")?;
            }
        }
        for key in &self.unexpected {
            write!(f, "\n  unexpected `{key}`")?;
        }
        for (key, found, expected) in &self.wrong_shape {
            write!(f, "\n  `{key}` has shape {found}, expected {expected}")?;
        }
        Ok(())
    }
}

impl Hint for CheckpointMismatch {
    fn hint(&self) -> Option<String> {
        let is_adapter = self.unexpected.iter().any(|key| key.contains("lora_"));
        if is_adapter {
            return Some("load the base model, and use this checkpoint as its adapter".to_owned());
        }
        (!self.wrong_shape.is_empty() && self.missing.is_empty() && self.unexpected.is_empty())
            .then(|| "use the configuration of this checkpoint; its sizes differ".to_owned())
    }
}
