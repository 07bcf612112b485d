//! Dry run of a config.

use std::sync::Arc;

use weightloom_hub::Hub;
use weightloom_hub::cards::ModelAddress;

use super::build::load_tokenizer;
use super::dataset::{ResolvedConfig, data_cache};
use super::hub_data::is_on_hub;
use super::model_plan::ModelPlan;
use super::weights::open_weights;
use crate::config::{Config, DataType};
use crate::data::{DataError, DataSettings, Epochs, Loader};
use crate::dry_run::{self, DataReport, DeviceMemory, DryRun, DryRunData, DryRunSettings, FitReport};
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
    let weights_config = match (&config.model.weights_path, &config.model.arch) {
        (Some(path), None) => Some(known_config(hub, &*spec, path)?),
        _ => None,
    };
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
        Ok::<DryRun, TrainError>(dry_run::run(&settings)?)
    };
    let plan = ModelPlan::new(config, &*spec, weights_config.as_ref(), world)?;
    let mut loaded = loader(config, hub, (&*spec, extensions), plan.definition.vocabulary()).transpose();
    let summary = match &mut loaded {
        Ok(Some(loader)) if config.data.r#type == DataType::Files => {
            let counted = loader.summary(&mut |_| {});
            let counted = counted.and_then(|summary| {
                summary.check_dropped(config.data.max_dropped)?;
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
    let mut report = predict(config, world, data)?;
    if let Err(error) = &summary {
        report.data = DataReport::Failed { reason: error.to_string() };
    }
    report.fit = memory.map(|memory| {
        let rows = (report.batch.rows_of_rank, report.batch.rows_at_once);
        let peak_of = |config: &Config, world: usize| predict(config, world, None).ok().map(|run| run.peak());
        FitReport::new(memory, report.peak(), (config, world), rows, &peak_of)
    });
    Ok(report)
}

/// The model config of weights without downloading them: from their card, or
/// from local files.
fn known_config(
    hub: &Hub,
    spec: &dyn ModelSpec,
    path: &str,
) -> Result<serde_json::Map<String, serde_json::Value>, TrainError> {
    let found = hub.resolve(path)?;
    if let Some((_, config)) = found.known {
        return Ok(config);
    }
    match found.address {
        Some(ModelAddress::Path(_)) => Ok(open_weights(hub, spec, path, &())?.config().clone()),
        _ => Err(TrainError::UnknownWeights { path: path.to_owned() }),
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
    Some(Loader::new(settings))
}
