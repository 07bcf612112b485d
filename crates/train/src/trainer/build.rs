//! From a run's file to what a rank trains.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use weightloom_checkpoint::{KeyMap, Observer, Source};
use weightloom_dtensor::{DistContext, DistOptions, NanCheck};
use weightloom_gang::{Gang, Gangs};
use weightloom_hub::fetch::FetchObserver;
use weightloom_hub::text::{ChatTemplates, Tokenizer};
use weightloom_hub::{
    Hub, Model, ModelLoadOptions, ModelLocation, config_file, load_decoder, new_decoder, text_files,
    text_files_of_folder,
};
use weightloom_layout::DType;
use weightloom_nn::{ActivationCheckpointing, Adapter, Decoder, Stage, parameters};

use super::adapter;
use super::blueprint::Blueprint;
use crate::callback::Remark;
use crate::config::{Config, DataType, GradientCheckpointing, LoraConfig};
use crate::data::{DataSettings, Epochs, Loader};
use crate::engine::{Engine, EngineSettings};
use crate::error::TrainError;
use crate::optimizer::{Patterns, WeightDecay, from_config};
use crate::pipeline::{Schedule, check};
use crate::sizes::ParallelSizes;
use crate::spec::{SharedSpec, Specs};

/// Everything that a run needs.
pub(super) struct Built {
    pub(super) engine: Engine,
    pub(super) loader: Loader,
    pub(super) sizes: ParallelSizes,
    pub(super) spec: SharedSpec,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    /// Files beside the weights of a checkpoint.
    pub(super) assets: BTreeMap<String, Vec<u8>>,
    /// The family that cards name; none for an adapter.
    pub(super) family: Option<String>,
    pub(super) remarks: Vec<Remark>,
}

/// The text side of a model.
pub(super) struct Texts {
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) templates: ChatTemplates,
    files: BTreeMap<String, Vec<u8>>,
}

/// Builds everything. Every rank. With `resumed`, weights that are trained
/// come from that checkpoint.
pub(super) fn build(
    config: &Config,
    hub: &Hub,
    specs: &Specs,
    gang: &Arc<dyn Gang>,
    resumed: Option<&Path>,
    fetching: &dyn FetchObserver,
    reading: &dyn Observer,
) -> Result<Built, TrainError> {
    let spec = specs.discover(hub, &config.model.name)?;
    let weights = config.model.weights_path.as_deref().map(|path| hub.open(path, fetching)).transpose()?;
    if let (Some(family), Some(model)) = (spec.family(), &weights)
        && family.name() != model.family().name()
    {
        let (spec, found) = (family.name().to_owned(), model.family().name().to_owned());
        return Err(TrainError::OtherFamily { spec, found, weights: model.name().to_owned() });
    }
    let blueprint = Blueprint::new(config, &*spec, weights.as_ref().map(Model::config), gang.size())?;
    let Blueprint { model: map, decoder, parallel, sizes, stages: all } = blueprint;
    let accelerator = &config.train.accelerator;
    let schedule = Schedule::new(accelerator.pp_schedule, sizes.pp, sizes.vpp, sizes.micro_batches)?;
    check(&schedule)?;
    let names: Vec<String> =
        parameters(&decoder, &Stage::whole(decoder.layers)).into_iter().map(|spec| spec.name).collect();
    let frozen = Patterns::new("model.freeze_modules", &config.model.freeze_modules)?;
    frozen.check(names.iter().map(String::as_str))?;
    if config.model.lora.is_none() && names.iter().all(|name| frozen.matches(name)) {
        return Err(TrainError::AllFrozen { parameters: names.len() });
    }
    let decay = WeightDecay::new(&config.train.optimizer, names.iter().map(String::as_str))?;
    let texts = texts(config, hub, weights.as_ref(), fetching)?;

    let gangs = Gangs::new(Arc::clone(gang), &sizes.gang_sizes())?;
    let nan_check = config.train.logging.nan_check.then(NanCheck::failing);
    let dist =
        DistContext::with_options(Arc::clone(gang), DistOptions { nan_check, ..DistOptions::default() });
    let usage = accelerator.usage(config.train.precision, sizes.dp_shard);
    let lora = config.model.lora.as_ref();
    let options = ModelLoadOptions {
        gangs: Some(gangs.clone()),
        // What is trained is kept in full; what is not need not be.
        dtype: Some(usage.dtype.filter(|_| lora.is_some()).unwrap_or(DType::F32)),
        usage,
        dist: Some(Arc::clone(&dist)),
        ..ModelLoadOptions::default()
    };
    // What is trained goes on from where it was; what is not is as it was.
    let begun = resumed.filter(|_| lora.is_none()).map(Source::open).transpose()?;
    let mut stages = Vec::new();
    for number in schedule.stages_of(gangs.pp.rank()) {
        let options = ModelLoadOptions { stage: all.get(number).cloned(), ..options.clone() };
        let made = match (&begun, &weights) {
            (Some(source), _) => {
                load_decoder(source, &decoder, &KeyMap::default(), &parallel, &options, reading)?.decoder
            }
            (None, Some(model)) => {
                load_decoder(model.source(), &decoder, &model.keys()?, &parallel, &options, reading)?.decoder
            }
            (None, None) => new_decoder(&decoder, &parallel, config.train.seed, &options)?,
        };
        let adapter =
            lora.map(|lora| adapter_of(config, lora, weights.as_ref(), &made, reading)).transpose()?;
        stages.push((number, made, adapter));
    }
    let family = spec.family();
    let mut assets = texts.files;
    match (lora, &family) {
        (Some(lora), _) => {
            let base = config.model.weights_path.as_deref().unwrap_or_default();
            assets.insert("adapter_config.json".to_owned(), adapter::config_file(lora, base)?);
        }
        (None, Some(family)) => {
            assets.insert("config.json".to_owned(), config_file(&**family, &map, DType::F32));
        }
        (None, None) => {}
    }
    let settings = EngineSettings {
        gangs,
        dist,
        schedule: Arc::new(schedule),
        optimizer: from_config(&config.train.optimizer)?,
        decay: &decay,
        frozen: &frozen,
        checkpointing: match config.train.gradient_checkpointing {
            GradientCheckpointing::Off => ActivationCheckpointing::Off,
            GradientCheckpointing::Full => ActivationCheckpointing::Full,
        },
        dropout: lora.map_or(0.0, |lora| lora.dropout),
    };
    let engine = Engine::new(settings, stages)?;
    let loader = Loader::new(DataSettings {
        config: config.data.clone(),
        tokenizer: texts.tokenizer.clone(),
        templates: Arc::new(texts.templates),
        seed: config.train.seed,
        vocabulary: decoder.vocabulary,
        epochs: match config.train.max_steps {
            Some(_) => Epochs::Endless,
            None => Epochs::Times(config.train.epochs),
        },
    })?;
    let mut remarks = Vec::new();
    if sizes.stages() > 1 && !config.train.eval.samples.prompts.is_empty() {
        remarks.push(Remark::NoSamples);
    }
    let family = family.filter(|_| lora.is_none()).map(|family| family.name().to_owned());
    Ok(Built { engine, loader, sizes, spec, tokenizer: texts.tokenizer, assets, family, remarks })
}

fn adapter_of(
    config: &Config,
    lora: &LoraConfig,
    weights: Option<&Model>,
    decoder: &Decoder,
    reading: &dyn Observer,
) -> Result<Adapter, TrainError> {
    let model = weights.ok_or(TrainError::NoBase)?;
    // One that is gone on with has its own.
    if lora.adapter_path.is_none() {
        adapter::check_targets(lora, decoder.config())?;
    }
    let made = adapter::adapter(lora, model, decoder, config.train.seed, reading)?;
    // PEFT's names are those of published modules.
    let keys = model.published_keys()?;
    if let Some(module) = made.modules().find(|module| adapter::is_foreign(module, &keys)) {
        let (module, family) = (module.to_owned(), model.family().name().to_owned());
        return Err(TrainError::ForeignModules { family, module });
    }
    Ok(made)
}

/// The tokenizer and what goes with it: where the run's file says, or with the
/// weights.
pub(super) fn texts(
    config: &Config,
    hub: &Hub,
    weights: Option<&Model>,
    fetching: &dyn FetchObserver,
) -> Result<Texts, TrainError> {
    if let Some(path) = &config.model.tokenizer_path {
        let folder = match hub.fetch(path, fetching)?.location {
            ModelLocation::Path(folder) => folder,
            ModelLocation::Url(_) => return Err(TrainError::TokenizerPlace { path: path.clone() }),
        };
        let hub_error = |error| TrainError::Hub(weightloom_hub::HubError::Text(error));
        let tokenizer = Tokenizer::from_folder(&folder).map_err(hub_error)?;
        let templates = ChatTemplates::from_folder(&folder).map_err(|error| TrainError::Hub(error.into()))?;
        let files = text_files_of_folder(&folder)?;
        return Ok(Texts { tokenizer: Some(Arc::new(tokenizer)), templates, files });
    }
    match weights {
        Some(model) => Ok(Texts {
            tokenizer: Some(Arc::new(model.tokenizer()?)),
            templates: model.chat_templates()?,
            files: text_files(model)?,
        }),
        None if config.data.r#type == DataType::Dummy => {
            Ok(Texts { tokenizer: None, templates: ChatTemplates::default(), files: BTreeMap::new() })
        }
        None => Err(TrainError::NoTokenizer),
    }
}
