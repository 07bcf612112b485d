//! Building the engine and the data loader of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_checkpoint::plan::LoadPlannerFactory;
use weightloom_checkpoint::{CheckpointError, Format, Index, KeyMap, Observer, Source, verify_model};
use weightloom_dtensor::{DistContext, DistOptions, NanCheck};
use weightloom_gang::{Gang, Gangs};
use weightloom_hub::fetch::FetchObserver;
use weightloom_hub::text::{ChatTemplates, Tokenizer};
use weightloom_hub::{
    CheckpointMismatch, Hub, LoadedModel, Model, ModelLoadOptions, ModelLocation, TrainingData, config_file,
    config_file_from, load_model, new_model, text_files, text_files_of_folder,
};
use weightloom_layout::DType;
use weightloom_nn::{self as nn, ActivationCheckpointing, Adapter, ModelDefinition};

use super::adapter;
use super::checks::{ParameterPatterns, check_arch, check_family};
use super::dataset::data_cache;
use super::model_plan::ModelPlan;
use super::resume_point::name_damage;
use super::run_card::RunCard;
use super::teacher::TeacherSource;
use super::weights::open_weights;
use crate::callback::Notice;
use crate::config::{Config, DataType, GradientCheckpointing, LoraConfig};
use crate::data::{DataSettings, Epochs, Loader};
use crate::engine::{Engine, EngineSettings};
use crate::error::TrainError;
use crate::extensions::Extensions;
use crate::optimizer::{LearningRateScale, with_average};
use crate::parallel_dims::ParallelDims;
use crate::pipeline::{Schedule, check};
use crate::spec::{ModelSpec, SharedSpec};
use crate::trained_names::trained_names;

/// The parts of a run.
pub(super) struct Built {
    pub(super) engine: Engine,
    pub(super) loader: Loader,
    pub(super) dims: ParallelDims,
    pub(super) spec: SharedSpec,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    /// Files saved with the weights of each checkpoint.
    pub(super) assets: BTreeMap<String, Vec<u8>>,
    /// What the cards of the run say.
    pub(super) card: Option<RunCard>,
    /// Tensors of the initial weights that do not match, if there are any.
    pub(super) weights_mismatch: Option<CheckpointMismatch>,
    pub(super) notices: Vec<Notice>,
}

/// A tokenizer with its chat templates and files.
pub(super) struct TokenizerBundle {
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) templates: ChatTemplates,
    files: BTreeMap<String, Vec<u8>>,
}

/// Builds the parts of a run. Called by every rank. Trained weights come from
/// the checkpoint `resumed`, if there is one.
pub(super) fn build(
    config: &Config,
    hub: &Hub,
    extensions: &Extensions,
    gang: &Arc<dyn Gang>,
    resumed: Option<&Path>,
    fetching: &dyn FetchObserver,
    reading: &dyn Observer,
) -> Result<Built, TrainError> {
    let spec = extensions.specs.find(hub, &config.model.name)?;
    let weights = config.model.weights_path.as_deref();
    let weights = weights.map(|path| open_weights(hub, &*spec, path, fetching)).transpose()?;
    if let Some(model) = &weights {
        check_family(&*spec, model)?;
    }
    check_arch(config, hub, &*spec)?;
    let plan = ModelPlan::new(config, &*spec, weights.as_ref().map(Model::config), gang.size())?;
    let ModelPlan { model: map, definition, parallel, dims, stages: all } = plan;
    let accelerator = &config.train.accelerator;
    let schedule = Schedule::new(accelerator.pp_schedule, dims.pp, dims.vpp, dims.micro_batches)?;
    check(&schedule)?;
    let ParameterPatterns { frozen, decay } = ParameterPatterns::new(config, &*definition)?;
    let optimizer = extensions.optimizers.build(&config.train.optimizer)?;
    let optimizer = with_average(optimizer, config.train.ema.as_ref());
    let trained = trained_names(&*definition, &frozen, config.model.lora.as_ref());
    let trained: BTreeSet<&str> = trained.iter().map(String::as_str).collect();
    optimizer.check_names(&trained)?;
    let lr_scale = LearningRateScale::new(&config.train.optimizer.lr_scale, trained)?;
    let loss = extensions.losses.build(&config.train.loss)?;
    loss.check_stages(dims.stages())?;
    let text = load_tokenizer(config, hub, weights.as_ref(), fetching)?;

    let gangs = Gangs::new(Arc::clone(gang), &dims.gang_sizes())?;
    let device = config.train.device.resolve(gang.rank())?.device;
    let nan_check = config.train.logging.nan_check.then(NanCheck::failing);
    let options =
        DistOptions { device, nan_check, registry: extensions.operations.clone(), ..DistOptions::default() };
    let dist = DistContext::with_options(Arc::clone(gang), options);
    let usage = accelerator.usage(config.train.precision, dims.dp_shard);
    let lora = config.model.lora.as_ref();
    let options = ModelLoadOptions {
        gangs: Some(gangs.clone()),
        dtype: Some(config.weights_dtype()),
        usage,
        device,
        dist: Some(Arc::clone(&dist)),
        // What the weights lack is as in a new model.
        seed: config.train.seed,
        ..ModelLoadOptions::default()
    };
    let teacher_options = options.clone();
    // Only trained weights are in the checkpoint.
    let checkpoint = resumed.filter(|_| lora.is_none());
    let checkpoint = checkpoint.map(|path| open_checkpoint(path).map(|source| (path, source))).transpose()?;
    let checkpoint_keys = match &checkpoint {
        Some((path, source)) => {
            let keys = checkpoint_keys(&*spec, &map, &*definition, source)?;
            if !keys.rules.is_empty() {
                // Loading compares checksums of tensors under their own names only.
                verify_model(source, &**gang, reading).map_err(|error| name_damage(path, error.into()))?;
            }
            keys
        }
        None => KeyMap::default(),
    };
    let planner = load_planner(config, extensions)?;
    let mut stages = Vec::new();
    let mut weights_mismatch = None;
    for number in schedule.stages_of(gangs.pp.rank()) {
        let options = ModelLoadOptions { stage: all.get(number).cloned(), ..options.clone() };
        let made = match (&checkpoint, &weights) {
            (Some((path, source)), _) => {
                let options = ModelLoadOptions { planner: Some(Arc::clone(&planner)), ..options };
                load_model(source, &*definition, &checkpoint_keys, &parallel, &options, reading)
                    .map_err(|error| name_damage(path, error.into()))?
                    .model
            }
            (None, Some(model)) => {
                let strictness = config.model.strictness.into();
                let options = ModelLoadOptions { strictness, ..options };
                let LoadedModel { model, mismatch, .. } =
                    load_model(model.source(), &*definition, &model.keys()?, &parallel, &options, reading)?;
                if lora.is_some() && mismatch.initialized().next().is_some() {
                    return Err(initialized_base(config, &mismatch));
                }
                weights_mismatch = Some(mismatch).filter(|mismatch| !mismatch.is_empty());
                model
            }
            (None, None) => new_model(&*definition, &parallel, config.train.seed, &options)?,
        };
        let adapter =
            lora.map(|lora| build_adapter(config, lora, weights.as_ref(), &*made, reading)).transpose()?;
        stages.push((number, made, adapter));
    }
    let family = spec.family();
    let mut assets = text.files;
    match (lora, &family) {
        (Some(lora), _) => {
            let base = config.model.weights_path.as_deref().unwrap_or_default();
            assets.insert("adapter_config.json".to_owned(), adapter::config_file(lora, base, &*definition)?);
        }
        (None, Some(family)) => {
            let file = match &weights {
                Some(model) => config_file_from(model, &map, DType::F32)?,
                None => config_file(&**family, &map, DType::F32),
            };
            assets.insert("config.json".to_owned(), file);
        }
        (None, None) => {}
    }
    let settings = EngineSettings {
        gangs,
        dist,
        schedule: Arc::new(schedule),
        optimizer,
        decay: &decay,
        frozen: &frozen,
        checkpointing: match config.train.gradient_checkpointing {
            GradientCheckpointing::Off => ActivationCheckpointing::Off,
            GradientCheckpointing::Full => ActivationCheckpointing::Full,
        },
        dropout: lora.map_or(0.0, |lora| lora.dropout),
    };
    let mut engine = Engine::new(settings, stages)?;
    let needs = loss.needs();
    engine.set_loss(loss);
    engine.set_lr_scale(&lr_scale);
    if let Some(path) = &needs.teacher {
        let source = TeacherSource { hub, fetching, reading };
        engine.set_teacher(source.load(path, &*definition, &teacher_options)?);
    }
    if family.is_some() && lora.is_none() {
        engine.set_published_keys(published_keys(&*spec, &map, weights.as_ref())?);
    }
    let settings = DataSettings {
        config: config.data.clone(),
        tokenizer: text.tokenizer.clone(),
        templates: Arc::new(text.templates),
        seed: config.train.seed,
        vocabulary: definition.vocabulary(),
        epochs: match config.train.max_steps {
            Some(_) => Epochs::Endless,
            None => Epochs::Times(config.train.epochs),
        },
        formats: extensions.formats.clone(),
        cache: data_cache(hub),
    };
    let loader = Loader::supervised(settings, needs.documents)?;
    if let Some(record) = loader.training_data()? {
        assets.insert(TrainingData::FILE.to_owned(), record.to_json());
    }
    if let Some(template) = loader.template_file() {
        // The tokenizer's own template would render other texts than the data.
        assets.insert("chat_template.jinja".to_owned(), template.as_bytes().to_vec());
    }
    let card = RunCard::new(config, hub, &*spec, weights.as_ref())?;
    let tokenizer = text.tokenizer;
    Ok(Built { engine, loader, dims, spec, tokenizer, assets, card, weights_mismatch, notices: Vec::new() })
}

/// The error for an adapter of weights that are not saved anywhere.
fn initialized_base(config: &Config, mismatch: &CheckpointMismatch) -> TrainError {
    TrainError::InitializedBase {
        weights: config.model.weights_path.clone().unwrap_or_default(),
        parameters: mismatch.initialized().map(str::to_owned).collect(),
    }
}

/// Whether a checkpoint has the names of the model's parameters.
fn has_own_names(index: &Index, definition: &dyn ModelDefinition) -> bool {
    let mut specs = definition.all_parameters().into_iter();
    specs.all(|spec| index.tensors().contains_key(&spec.name))
}

/// The map from the names in a checkpoint of a run to those of the model's
/// parameters. Older runs saved the latter.
fn checkpoint_keys(
    spec: &dyn ModelSpec,
    config: &Map<String, Value>,
    definition: &dyn ModelDefinition,
    source: &Source,
) -> Result<KeyMap, TrainError> {
    match spec.family().is_none() || has_own_names(&source.index, definition) {
        true => Ok(KeyMap::default()),
        false => Ok(spec.keys(config, &source.index)?),
    }
}

/// The map from the names of the model's parameters to published ones.
fn published_keys(
    spec: &dyn ModelSpec,
    config: &Map<String, Value>,
    weights: Option<&Model>,
) -> Result<KeyMap, TrainError> {
    match weights {
        Some(model) => Ok(spec.published_keys(config, &model.source().index)?),
        None => {
            let empty = Index::new(Format::Native, Vec::new(), BTreeMap::new());
            let empty = empty.map_err(CheckpointError::from)?;
            Ok(spec.published_keys(config, &empty)?)
        }
    }
}

/// The planner of loads from the run's checkpoints.
pub(super) fn load_planner(
    config: &Config,
    extensions: &Extensions,
) -> Result<Arc<dyn LoadPlannerFactory>, TrainError> {
    let found = extensions.load_planners.find(config.train.checkpoint.load_planner.name());
    found.map_err(|unknown| TrainError::Planner { key: "load_planner", unknown })
}

/// Opens a checkpoint to resume from.
pub(super) fn open_checkpoint(path: &Path) -> Result<Source, TrainError> {
    Source::open(path).map_err(|error| name_damage(path, error.into()))
}

fn build_adapter(
    config: &Config,
    lora: &LoraConfig,
    weights: Option<&Model>,
    built: &dyn nn::Model,
    reading: &dyn Observer,
) -> Result<Adapter, TrainError> {
    let model = weights.ok_or(TrainError::NoBase)?;
    let made = adapter::adapter(lora, model, built, config.train.seed, reading)?;
    // PEFT uses the names of published modules.
    let keys = model.published_keys()?;
    if let Some(module) = made.modules().find(|module| adapter::is_foreign(module, &keys)) {
        let (module, family) = (module.to_owned(), model.family().name().to_owned());
        return Err(TrainError::ForeignModules { family, module });
    }
    Ok(made)
}

/// Loads the tokenizer of `model.tokenizer_path` or of the weights.
pub(super) fn load_tokenizer(
    config: &Config,
    hub: &Hub,
    weights: Option<&Model>,
    fetching: &dyn FetchObserver,
) -> Result<TokenizerBundle, TrainError> {
    if let Some(path) = &config.model.tokenizer_path {
        let folder = match hub.fetch_tokenizer(path, fetching)? {
            ModelLocation::Path(folder) => folder,
            ModelLocation::Url(_) => return Err(TrainError::TokenizerLocation { path: path.clone() }),
        };
        let hub_error = |error| TrainError::Hub(weightloom_hub::HubError::Text(error));
        let tokenizer = Tokenizer::from_folder(&folder).map_err(hub_error)?;
        let templates = ChatTemplates::from_folder(&folder).map_err(|error| TrainError::Hub(error.into()))?;
        let files = text_files_of_folder(&folder)?;
        return Ok(TokenizerBundle { tokenizer: Some(Arc::new(tokenizer)), templates, files });
    }
    match weights {
        Some(model) => Ok(TokenizerBundle {
            tokenizer: Some(Arc::new(model.tokenizer()?)),
            templates: model.chat_templates()?,
            files: text_files(model)?,
        }),
        None if config.data.r#type == DataType::Dummy => Ok(TokenizerBundle {
            tokenizer: None,
            templates: ChatTemplates::default(),
            files: BTreeMap::new(),
        }),
        None => Err(TrainError::NoTokenizer),
    }
}
