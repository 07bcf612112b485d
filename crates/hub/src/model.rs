//! A model ready to load: its files, family and configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use weightloom_checkpoint::formats::gguf::{self, GgufValue};
use weightloom_checkpoint::{
    Format, Index, KeyMap, Observer, ReadOptions, ReadRequest, Source, StorageError, read,
};
use weightloom_layout::{DType, Region};
use weightloom_nn::{self as nn, Adapter, SharedDefinition};

use crate::adapter::load_adapter;
use crate::cards::Card;
use crate::error::HubError;
use crate::family::SharedFamily;
use crate::load::{LoadedModel, ModelLoadOptions, belongs_to_training, load_model};
use crate::text::{
    ChatContext, ChatTemplates, GenerationDefaults, GgufModel, TextError, Tokenizer, gguf_config,
};
use crate::training_data::TrainingData;

/// Limit for text files of a model. The largest tokenizers have tens of
/// megabytes.
const MAX_FILE_BYTES: u64 = 1 << 28;

/// A model with local or remote files, ready to load.
#[derive(Clone)]
pub struct Model {
    pub(crate) name: String,
    pub(crate) card: Option<Card>,
    pub(crate) family: SharedFamily,
    pub(crate) config: Map<String, Value>,
    pub(crate) source: Source,
    /// Files of the tokenizer.
    pub(crate) text_source: Files,
    pub(crate) metadata: Arc<OnceLock<BTreeMap<String, GgufValue>>>,
    /// Sharding rules of the operations that it uses.
    pub(crate) operations: weightloom_dtensor::Registry,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({}, {}, {})", self.name, self.family.name(), self.source.storage.location())
    }
}

/// Files beside a checkpoint.
#[derive(Clone)]
pub(crate) struct Files(pub(crate) Arc<dyn weightloom_checkpoint::Storage>);

impl Files {
    /// Reads a file, if it exists.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        match self.0.read_all(name, MAX_FILE_BYTES) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StorageError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a file that will be copied, if it exists. Refuses a link to a place
    /// outside of the folder.
    pub(crate) fn read_to_copy(&self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        match self.0.check_inside(name) {
            Ok(()) => self.read(name),
            Err(StorageError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a file, with errors of tokenizers.
    fn read_text(&self, name: &str) -> Result<Option<Vec<u8>>, TextError> {
        self.read(name).map_err(|error| TextError::Read { file: name.to_owned(), message: error.to_string() })
    }
}

/// The configuration of a checkpoint: `config.json` or the metadata of a GGUF
/// file, if any.
pub(crate) fn own_config(source: &Source) -> Result<Option<Map<String, Value>>, HubError> {
    if source.index.format() == Format::Gguf {
        return gguf_own_config(source).map(Some);
    }
    let files = Files(Arc::clone(&source.storage));
    let checkpoint = weightloom_checkpoint::CheckpointError::from;
    let Some(bytes) = files.read("config.json").map_err(checkpoint)? else { return Ok(None) };
    let parsed: Result<Map<String, Value>, _> = serde_json::from_slice(&bytes);
    let location = source.storage.location();
    parsed.map(Some).map_err(|error| HubError::NotJson {
        file: format!("config.json in {location}"),
        message: error.to_string(),
    })
}

pub(crate) fn gguf_metadata(source: &Source) -> Result<BTreeMap<String, GgufValue>, HubError> {
    let name = source.index.files().first().map_or("", |file| file.name.as_str());
    Ok(gguf::read_metadata(&*source.storage, name)?.into_iter().collect())
}

fn gguf_own_config(source: &Source) -> Result<Map<String, Value>, HubError> {
    let metadata = gguf_metadata(source)?;
    let tensors: BTreeMap<String, Vec<usize>> =
        source.index.tensors().iter().map(|(name, entry)| (name.clone(), entry.shape.to_vec())).collect();
    let name = "rope_freqs.weight";
    let frequencies = match source.index.tensors().get(name) {
        None => None,
        Some(entry) => {
            let mut bytes = vec![0; entry.shape.volume() * 4];
            let want = ReadRequest {
                name,
                entry,
                region: Region::whole(&entry.shape),
                dtype: DType::F32,
                into: &mut bytes,
            };
            read(source, vec![want], &ReadOptions::default(), &())?;
            Some(
                bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect::<Vec<_>>(),
            )
        }
    };
    Ok(gguf_config(GgufModel { metadata: &metadata, tensors: &tensors, rope_freqs: frequencies.as_deref() })?)
}

impl Model {
    /// The requested name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The card, if there is one.
    pub fn card(&self) -> Option<&Card> {
        self.card.as_ref()
    }

    /// The family.
    pub fn family(&self) -> &SharedFamily {
        &self.family
    }

    /// The configuration, with all keys.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The checkpoint, with its own tensor names.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Replaces the configuration.
    pub fn with_config(mut self, config: Map<String, Value>) -> Result<Self, HubError> {
        let about =
            |problem| HubError::Config { about: format!("configuration for `{}`", self.name), problem };
        self.config = self.family.complete(&config).map_err(about)?;
        Ok(self)
    }

    /// The definition of the model: its architecture and sizes.
    pub fn definition(&self) -> Result<SharedDefinition, HubError> {
        let about = |problem| HubError::Config { about: format!("model `{}`", self.name), problem };
        self.family.definition(&self.config).map_err(about)
    }

    /// Mapping from the checkpoint's names to the model's; empty for checkpoints
    /// of our own training runs.
    pub fn keys(&self) -> Result<KeyMap, HubError> {
        if self.has_own_names()? {
            return Ok(KeyMap::default());
        }
        let about = |problem| HubError::Config { about: format!("model `{}`", self.name), problem };
        self.family.keys(&self.config, &self.source.index).map_err(about)
    }

    /// Mapping from the names of published models to those of the model's parameters, regardless of
    /// the checkpoint.
    pub fn published_keys(&self) -> Result<KeyMap, HubError> {
        let about = |problem| HubError::Config { about: format!("model `{}`", self.name), problem };
        // Names in our own checkpoints tell nothing about published ones.
        let index = match self.has_own_names()? {
            true => Index::new(Format::Native, Vec::new(), BTreeMap::new())
                .map_err(weightloom_checkpoint::CheckpointError::from)?,
            false => Index::clone(&self.source.index),
        };
        self.family.keys(&self.config, &index).map_err(about)
    }

    /// Whether the checkpoint has the names of the model's parameters.
    pub(crate) fn has_own_names(&self) -> Result<bool, HubError> {
        let found = self.source.index.tensors();
        let wanted: BTreeSet<String> =
            self.definition()?.all_parameters().into_iter().map(|spec| spec.name).collect();
        let is_whole = wanted.iter().all(|name| found.contains_key(name));
        // A checkpoint that lacks some has no others.
        let is_part = || {
            let mut names = found.keys().filter(|name| !belongs_to_training(&self.source, name));
            names.all(|name| wanted.contains(name))
        };
        Ok(self.source.manifest.is_some() && (is_whole || is_part()))
    }

    /// Loads the model. Called by every rank of the gangs.
    pub fn load(&self, options: &ModelLoadOptions, observer: &dyn Observer) -> Result<LoadedModel, HubError> {
        let (definition, keys) = (self.definition()?, self.keys()?);
        let options = options.or_operations(&self.operations);
        load_model(&self.source, &*definition, &keys, &self.family.parallel(), &options, observer)
    }

    /// Loads an adapter for this model.
    pub fn adapter(
        &self,
        model: &dyn nn::Model,
        adapter: &Source,
        observer: &dyn Observer,
    ) -> Result<Adapter, HubError> {
        load_adapter(adapter, model, &*self.family, &self.config, observer)
    }

    fn metadata(&self) -> Result<Option<&BTreeMap<String, GgufValue>>, HubError> {
        if self.source.index.format() != Format::Gguf {
            return Ok(None);
        }
        if self.metadata.get().is_none() {
            let _ = self.metadata.set(gguf_metadata(&self.source)?);
        }
        Ok(self.metadata.get())
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer, HubError> {
        let has_files = self.text_source.read("tokenizer.json").is_ok_and(|file| file.is_some());
        Ok(match self.metadata()? {
            Some(metadata) if !has_files => Tokenizer::from_gguf(metadata)?,
            _ => Tokenizer::from_files(&|name| self.text_source.read_text(name))?,
        })
    }

    /// The chat templates; empty for base models.
    pub fn chat_templates(&self) -> Result<ChatTemplates, HubError> {
        Ok(match self.metadata()? {
            Some(metadata) => ChatTemplates::from_gguf(metadata)?,
            None => ChatTemplates::from_files(&|name| self.text_source.read_text(name))?,
        })
    }

    /// Default sampling parameters.
    pub fn generation_defaults(&self) -> Result<GenerationDefaults, HubError> {
        Ok(match self.metadata()? {
            Some(metadata) => GenerationDefaults::from_gguf(metadata)?,
            None => GenerationDefaults::from_files(&|name| self.text_source.read_text(name))?,
        })
    }

    /// How the data of the training run that saved this checkpoint were
    /// formatted; `None` if the checkpoint does not say so.
    pub fn training_data(&self) -> Result<Option<TrainingData>, HubError> {
        let checkpoint = weightloom_checkpoint::CheckpointError::from;
        let files = Files(Arc::clone(&self.source.storage));
        let Some(bytes) = files.read(TrainingData::FILE).map_err(checkpoint)? else { return Ok(None) };
        Ok(Some(TrainingData::from_json(&bytes)?))
    }

    /// Whether the model was trained to converse: it has a chat template, and
    /// the token that the template writes after an assistant's answer ends a
    /// generation. Base models that come with a template end with another token.
    pub fn is_instruct(&self) -> Result<bool, HubError> {
        let templates = self.chat_templates()?;
        let Some(template) = templates.pick(&ChatContext::default()) else { return Ok(false) };
        let tokenizer = self.tokenizer()?;
        let mut eos = self.generation_defaults()?.eos;
        eos.extend(tokenizer.eos());
        eos.extend(self.config_eos());
        Ok(template.end_of_turn_token(&tokenizer)?.is_some_and(|token| eos.contains(&token)))
    }

    /// `eos_token_id` of the configuration.
    pub fn config_eos(&self) -> Vec<u32> {
        let number = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        match self.config.get("eos_token_id") {
            Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
            Some(one) => number(one).into_iter().collect(),
            None => Vec::new(),
        }
    }
}
