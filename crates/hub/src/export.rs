//! Export as a Hugging Face folder: weights, configuration, tokenizer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use weightloom_checkpoint::storage::LocalStorage;
use weightloom_checkpoint::{
    ConvertOptions, ConvertReport, Format, KeyMap, KeyRule, LocalTensor, Observer, SaveFormat, SaveOptions,
    Saver, Source, State, StorageError, Target, TensorSpec, convert,
};
use weightloom_files::{StagingFolder, WriteError};
use weightloom_gang::{GangOptions, solo};
use weightloom_layout::{DType, Region};
use weightloom_nn::{self as nn, NnError};

use crate::error::HubError;
use crate::family::AnyFamily;
use crate::load::{ModelLoadOptions, belongs_to_training};
use crate::model::{Files, Model};

/// Files of tokenizers, chat templates and generation defaults.
const TEXT_FILES: &[&str] = &[
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// Options for exporting a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportOptions {
    /// The dtype of parameters; defaults to the checkpoint's.
    pub dtype: Option<DType>,
    /// An adapter to merge, and its scale.
    pub adapter: Option<(PathBuf, f64)>,
}

/// Exports a model to a new Hugging Face folder.
pub fn export(
    model: &Model,
    target: &Path,
    options: &ExportOptions,
    observer: &dyn Observer,
) -> Result<ConvertReport, HubError> {
    match &options.adapter {
        None => {
            let save = SaveOptions {
                format: SaveFormat::HuggingFace,
                assets: assets(model, model.config(), options.dtype)?,
                ..SaveOptions::default()
            };
            // RoPE frequencies are in the configuration.
            let wanted =
                |name: &&String| *name != "rope_freqs.weight" && !belongs_to_training(model.source(), name);
            let mut source = model.source().clone();
            let mut only = source.index.tensors().keys().filter(wanted).cloned().collect();
            let back = if model.has_own_names()? { published_names(model)? } else { KeyMap::default() };
            if !back.rules.is_empty() {
                let training: Vec<KeyRule> = (source.index.tensors().keys())
                    .filter(|name| belongs_to_training(model.source(), name))
                    .map(|name| KeyRule::Drop { key: name.clone() })
                    .collect();
                source = source.with_keys(&KeyMap { rules: [training, back.rules].concat() })?;
                only = source.index.tensors().keys().cloned().collect();
            }
            let convert_options = ConvertOptions { save, dtype: options.dtype, only: Some(only) };
            Ok(convert(&source, &Target::Folder(target.to_owned()), &convert_options, observer)?)
        }
        Some((folder, scale)) => {
            let load = ModelLoadOptions { dtype: options.dtype, ..ModelLoadOptions::default() };
            let loaded = model.load(&load, observer)?.model;
            let adapter = model.adapter(&*loaded, &Source::open(folder)?, observer)?;
            save_model(model, &*loaded.merged(&adapter, *scale)?, target, observer)
        }
    }
}

/// Writes a model as a Hugging Face folder with the published names of its family.
/// This rank must hold the whole model.
pub fn save_model(
    model: &Model,
    trained: &dyn nn::Model,
    target: &Path,
    observer: &dyn Observer,
) -> Result<ConvertReport, HubError> {
    let mut config = model.config().clone();
    let tied = "tie_word_embeddings";
    if config.contains_key(tied) {
        config.insert(tied.to_owned(), Value::Bool(trained.definition().tied_parameter().is_some()));
    }
    let dtype = trained.parameters().first().map(|(_, value)| value.dtype());
    let back = published_names(model)?;
    // Beside the target, to be on the same file system. It has a unique name,
    // and goes in any case.
    let name = format!(".{}.merged", target.file_name().unwrap_or_default().to_string_lossy());
    let staging = StagingFolder::create(&target.with_file_name(name)).map_err(|error| match error {
        WriteError::InUse { holder, .. } => WriteError::InUse { path: target.display().to_string(), holder },
        other => other,
    });
    let staging = staging.map_err(weightloom_checkpoint::CheckpointError::from)?;
    let folder = staging.path().join("parameters");
    write_parameters(trained, &folder)?;
    let source = Source::open(&folder)?;
    let source = if back.rules.is_empty() { source } else { source.with_keys(&back)? };
    let save = SaveOptions {
        format: SaveFormat::HuggingFace,
        assets: assets(model, &config, dtype)?,
        ..SaveOptions::default()
    };
    let convert_options = ConvertOptions { save, dtype: None, only: None };
    Ok(convert(&source, &Target::Folder(target.to_owned()), &convert_options, observer)?)
}

/// Mapping from the model's names to published ones.
fn published_names(model: &Model) -> Result<KeyMap, HubError> {
    let specs = model.definition()?.all_parameters();
    let shapes = specs.into_iter().map(|spec| (spec.name, spec.shape)).collect();
    let keys = model.published_keys()?.with_sizes_of(&model.source().index);
    Ok(keys.inverse_for(&shapes).map_err(weightloom_checkpoint::CheckpointError::from)?)
}

fn write_parameters(model: &dyn nn::Model, folder: &Path) -> Result<(), HubError> {
    let mut all: Vec<(String, TensorSpec, Vec<u8>)> = Vec::with_capacity(model.parameters().len());
    for (name, value) in model.parameters() {
        let bytes = value.to_local().read_host(<[u8]>::to_vec).map_err(NnError::from)?;
        let sharding = weightloom_checkpoint::Sharding::Region(Region::whole(value.shape()));
        all.push((
            name.clone(),
            TensorSpec { dtype: value.dtype(), shape: value.shape().clone(), sharding },
            bytes,
        ));
    }
    let mut state = State::new();
    for (name, spec, bytes) in &all {
        state.model(name.clone(), LocalTensor { spec: spec.clone(), bytes: bytes.into() });
    }
    let options = SaveOptions { format: SaveFormat::HuggingFace, ..SaveOptions::default() };
    let checkpoint = weightloom_checkpoint::CheckpointError::from;
    let mut saver = Saver::new(solo(GangOptions::default())).map_err(checkpoint)?;
    saver.save(&state, &Target::Folder(folder.to_owned()), &options, &())?;
    Ok(())
}

/// The files beside the weights of a Hugging Face folder: configuration, tokenizer,
/// chat template and generation defaults.
pub fn folder_files(model: &Model, dtype: Option<DType>) -> Result<BTreeMap<String, Vec<u8>>, HubError> {
    assets(model, model.config(), dtype)
}

/// The files beside the weights.
fn assets(
    model: &Model,
    config: &Map<String, Value>,
    dtype: Option<DType>,
) -> Result<BTreeMap<String, Vec<u8>>, HubError> {
    let mut assets = text_files(model)?;
    // Its keys are copied.
    if model.source().index.format() != Format::Gguf {
        match model.source().storage.check_inside("config.json") {
            Ok(()) | Err(StorageError::Missing { .. }) => {}
            Err(error) => return Err(weightloom_checkpoint::CheckpointError::from(error).into()),
        }
    }
    let own = crate::model::own_config(model.source())?.unwrap_or_default();
    let stored =
        model.source().index.tensors().values().map(|entry| entry.dtype).find(|dtype| dtype.is_float());
    let published = published_config(&**model.family(), own, config, dtype.or(stored));
    assets.insert("config.json".to_owned(), json(&Value::Object(published)));
    Ok(assets)
}

fn json(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

/// The files of a model's tokenizer, chat template and generation defaults.
pub fn text_files(model: &Model) -> Result<BTreeMap<String, Vec<u8>>, HubError> {
    let mut assets = BTreeMap::new();
    let checkpoint = weightloom_checkpoint::CheckpointError::from;
    for name in TEXT_FILES {
        if let Some(bytes) = model.text_source.read_to_copy(name).map_err(checkpoint)? {
            assets.insert((*name).to_owned(), bytes);
        }
    }
    if model.source().index.format() == Format::Gguf && !assets.contains_key("tokenizer.json") {
        let tokenizer = model.tokenizer()?;
        let templates = model.chat_templates()?;
        let template = templates.get("default").map(|template| template.source().to_owned());
        assets.insert("tokenizer.json".to_owned(), tokenizer.to_json()?.into_bytes());
        assets.insert(
            "tokenizer_config.json".to_owned(),
            tokenizer.config_json(template.as_deref()).into_bytes(),
        );
        let mut generation = Map::new();
        if let Some(bos) = tokenizer.bos() {
            generation.insert("bos_token_id".to_owned(), bos.into());
        }
        if !tokenizer.eos().is_empty() {
            generation.insert("eos_token_id".to_owned(), tokenizer.eos().to_vec().into());
        }
        assets.insert("generation_config.json".to_owned(), json(&Value::Object(generation)));
    }
    Ok(assets)
}

/// The same files of a folder.
pub fn text_files_of_folder(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, HubError> {
    let files = Files(std::sync::Arc::new(LocalStorage::new(folder)));
    let mut found = BTreeMap::new();
    for name in TEXT_FILES {
        let read = files.read_to_copy(name).map_err(weightloom_checkpoint::CheckpointError::from)?;
        found.extend(read.map(|bytes| ((*name).to_owned(), bytes)));
    }
    Ok(found)
}

/// The `config.json` of a new or changed model.
pub fn config_file(family: &dyn AnyFamily, config: &Map<String, Value>, dtype: DType) -> Vec<u8> {
    json(&Value::Object(published_config(family, Map::new(), config, Some(dtype))))
}

/// The `config.json` of a model that was trained from another, whose other keys it
/// keeps.
pub fn config_file_from(
    base: &Model,
    config: &Map<String, Value>,
    dtype: DType,
) -> Result<Vec<u8>, HubError> {
    let family = &**base.family();
    let mut own = crate::model::own_config(base.source())?.unwrap_or_default();
    // A family may read weights of other types.
    let is_own =
        |value: &Value| value.as_str().is_some_and(|name| family.model_types().iter().any(|own| own == name));
    if !own.get("model_type").is_some_and(is_own) {
        own.remove("model_type");
        own.remove("architectures");
    }
    Ok(json(&Value::Object(published_config(family, own, config, Some(dtype)))))
}

/// The checkpoint's own configuration, updated, for other programs.
fn published_config(
    family: &dyn AnyFamily,
    own: Map<String, Value>,
    config: &Map<String, Value>,
    dtype: Option<DType>,
) -> Map<String, Value> {
    let mut published = own;
    // Leave out new keys without a value, unless they would then get a default one.
    let given = config.iter().filter(|(_, value)| !value.is_null());
    let defaults = family.complete(&given.map(|(key, value)| (key.clone(), value.clone())).collect());
    let has_default = |key: &str| {
        defaults.as_ref().is_ok_and(|defaults| defaults.get(key).is_some_and(|value| !value.is_null()))
    };
    for (key, value) in config {
        if published.contains_key(key) || !value.is_null() || has_default(key) {
            published.insert(key.clone(), value.clone());
        }
    }
    let model_type = family.model_types().into_iter().next().unwrap_or_default();
    published.entry("model_type").or_insert_with(|| model_type.into());
    published.entry("architectures").or_insert_with(|| vec![family.architecture()].into());
    let name = match dtype {
        Some(DType::F32) => Some("float32"),
        Some(DType::Bf16) => Some("bfloat16"),
        Some(DType::F16) => Some("float16"),
        Some(DType::F64) => Some("float64"),
        _ => None,
    };
    if let Some(name) = name {
        published.remove("dtype");
        published.insert("torch_dtype".to_owned(), name.into());
    }
    published
}
