//! Dry run of a config.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weightloom_hub::cards::ModelAddress;
use weightloom_hub::{Hub, Model};

use super::build::load_tokenizer;
use super::checks::{ParameterPatterns, check_adapter, check_arch, check_config, check_family};
use super::dataset::{ResolvedConfig, data_cache};
use super::hub_data::is_on_hub;
use super::model_plan::ModelPlan;
use super::teacher;
use super::weights::open_weights;
use crate::config::{Config, DataType, RunFacts};
use crate::data::{DataError, DataSettings, Epochs, Loader};
use crate::dry_run::{self, DataReport, DeviceMemory, DryRun, DryRunData, DryRunSettings, FitReport, GpuFit};
use crate::error::TrainError;
use crate::extensions::Extensions;
use crate::spec::ModelSpec;

/// Inputs of a dry run.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct DryRunRequest<'a> {
    pub config: &'a Config,
    pub hub: &'a Hub,
    pub extensions: &'a Extensions,
    /// The number of ranks.
    pub world: usize,
    /// The memory that the run should fit into.
    pub memory: Option<DeviceMemory>,
}

/// Predicts memory, communication and time of a run. Needs neither data nor weights,
/// only the model config of the weights. Counts the documents if the data and the
/// tokenizer are available locally.
pub fn dry_run(request: DryRunRequest<'_>) -> Result<DryRun, TrainError> {
    let DryRunRequest { config, hub, extensions, world, memory } = request;
    let resolved = ResolvedConfig::new(config, hub, None)?;
    let config = &resolved.config;
    let spec = extensions.specs.find(hub, &config.model.name)?;
    check_config(config, extensions)?;
    for sink in &config.train.logging.report_to {
        extensions.sinks.check(sink)?;
    }
    check_arch(config, hub, &*spec)?;
    let weights = local_weights(config, hub, &*spec)?;
    let weights_config = match (&config.model.weights_path, &weights) {
        (_, Some(model)) => Some(model.config().clone()),
        (Some(path), None) if config.model.arch.is_none() => Some(known_config(hub, path)?),
        _ => None,
    };
    if let Some(model) = &weights {
        check_family(&*spec, model)?;
    }
    let loss = extensions.losses.build(&config.train.loss)?;
    let teacher = loss.needs().teacher;
    let student =
        || Ok::<_, TrainError>(ModelPlan::new(config, &*spec, weights_config.as_ref(), world)?.definition);
    let teacher = teacher.map(|path| teacher::describe(hub, &path, &*student()?)).transpose()?;
    let predict = |config: &Config, world: usize, data: Option<DryRunData<'_>>| {
        let plan = ModelPlan::new(config, &*spec, weights_config.as_ref(), world)?;
        let settings = DryRunSettings {
            config,
            definition: &*plan.definition,
            parallel: &plan.parallel,
            stages: &plan.stages,
            sizes: plan.dims.gang_sizes(),
            world,
            data,
            extensions,
        };
        Ok::<DryRun, TrainError>(dry_run::run_with(&settings, teacher.as_ref())?)
    };
    let plan = ModelPlan::new(config, &*spec, weights_config.as_ref(), world)?;
    ParameterPatterns::new(config, &*plan.definition)?;
    if let (Some(lora), Some(model)) = (&config.model.lora, &weights) {
        check_adapter(lora, &*plan.definition, model)?;
    }
    let mut loaded = loader(config, hub, (&*spec, extensions), plan.definition.vocabulary()).transpose();
    let summary = match &mut loaded {
        Ok(Some(loader)) if config.data.r#type == DataType::Files => {
            let counted = loader.summary(&mut |_| {});
            let counted = counted.and_then(|summary| {
                summary.check_dropped(config.data.max_dropped)?;
                loader.evaluation_sets()?;
                Ok(summary)
            });
            counted.map(Some)
        }
        Ok(_) => Ok(None),
        Err(error) => Err(error.clone()),
    };
    let data = match (&loaded, &summary) {
        (Ok(Some(loader)), Ok(summary)) => Some(DryRunData { loader, summary: summary.as_ref() }),
        _ => None,
    };
    let begin = Instant::now();
    let mut report = predict(config, world, data)?;
    let is_fast = begin.elapsed() < SEARCHED;
    if let Err(error) = &summary {
        report.data = DataReport::Failed { reason: error.to_string() };
    }
    let steps = dry_run::steps_of(config, summary.as_ref().ok().and_then(Option::as_ref));
    if let Some(steps) = steps {
        extensions.schedules.build(config.train.optimizer.lr, &config.train.schedule, steps)?;
    }
    let rows = summary.as_ref().ok().and_then(|summary| summary.as_ref()?.rows);
    let context_length = plan.definition.context_length();
    report.warnings = config.warnings(RunFacts { context_length, steps, rows });
    let known: RefCell<Vec<(Config, usize, Option<u64>)>> = RefCell::default();
    let peak_of = |config: &Config, world: usize| {
        let is_same = |(other, ranks, _): &&(Config, usize, Option<u64>)| other == config && *ranks == world;
        if let Some((_, _, peak)) = known.borrow().iter().find(is_same) {
            return *peak;
        }
        let peak = predict(config, world, None).ok().map(|run| run.peak());
        known.borrow_mut().push((config.clone(), world, peak));
        peak
    };
    let rows = (report.batch.rows_of_rank, report.batch.rows_at_once);
    report.fit = memory.map(|memory| FitReport::new(memory, report.peak(), (config, world), rows, &peak_of));
    report.gpus = COMMON_GPUS
        .map(|gigabytes| {
            let memory = DeviceMemory::of_bytes(gigabytes * 1_000_000_000);
            let searched = |config: &Config, world: usize| is_fast.then(|| peak_of(config, world)).flatten();
            let fit = FitReport::new(memory, report.peak(), (config, world), rows, &searched);
            GpuFit { gigabytes, needed: fit.needed, fits: fit.fits, remedy: fit.remedies.into_iter().next() }
        })
        .to_vec();
    Ok(report)
}

/// Memory of common GPUs, in gigabytes.
const COMMON_GPUS: [u64; 3] = [24, 80, 141];

/// The longest that a prediction may take for a search of configs that fit on common
/// GPUs, which needs about ten more.
const SEARCHED: Duration = Duration::from_secs(1);

/// The weights of a config, if they are on this machine.
fn local_weights(config: &Config, hub: &Hub, spec: &dyn ModelSpec) -> Result<Option<Model>, TrainError> {
    let Some(path) = &config.model.weights_path else { return Ok(None) };
    let found = hub.resolve(path)?;
    match found.address {
        // A card knows the config of a model that is not here.
        Some(ModelAddress::Path(folder)) if found.known.is_none() || folder.exists() => {
            Ok(Some(open_weights(hub, spec, path, &())?))
        }
        _ => Ok(None),
    }
}

/// The model config of weights without downloading them, from their card.
fn known_config(hub: &Hub, path: &str) -> Result<serde_json::Map<String, serde_json::Value>, TrainError> {
    match hub.resolve(path)?.known {
        Some((_, config)) => Ok(config),
        None => Err(TrainError::UnknownWeights { path: path.to_owned() }),
    }
}

/// The data loader, if the tokenizer is available locally.
fn loader(
    config: &Config,
    hub: &Hub,
    (spec, extensions): (&dyn ModelSpec, &Extensions),
    vocabulary: usize,
) -> Option<Result<Loader, DataError>> {
    let is_local =
        |path: &str| matches!(hub.resolve(path).ok()?.address, Some(ModelAddress::Path(_))).then_some(());
    if is_on_hub(&config.data) {
        return None;
    }
    if let Some(path) = config.model.tokenizer_path.as_deref().or(config.model.weights_path.as_deref()) {
        is_local(path)?;
    } else if config.data.r#type != DataType::Dummy {
        return None;
    }
    let weights = match (&config.model.tokenizer_path, &config.model.weights_path) {
        (None, Some(path)) => Some(open_weights(hub, spec, path, &()).ok()?),
        _ => None,
    };
    let text = load_tokenizer(config, hub, weights.as_ref(), &()).ok()?;
    let settings = DataSettings {
        config: config.data.clone(),
        tokenizer: text.tokenizer,
        templates: Arc::new(text.templates),
        seed: config.train.seed,
        vocabulary,
        epochs: Epochs::Endless,
        formats: extensions.formats.clone(),
        cache: data_cache(hub),
    };
    let documents = extensions.losses.build(&config.train.loss).ok()?.needs().documents;
    Some(Loader::supervised(settings, documents))
}
