//! Dry run of a config.

use std::sync::Arc;

use weightloom_hub::Hub;
use weightloom_hub::cards::ModelAddress;

use super::build::load_tokenizer;
use super::dataset::ResolvedConfig;
use super::model_plan::ModelPlan;
use super::weights::open_weights;
use crate::config::{Config, DataType};
use crate::data::{DataError, DataSettings, Epochs, Loader};
use crate::dry_run::{self, DataReport, DryRun, DryRunData, DryRunSettings};
use crate::error::TrainError;
use crate::extensions::Extensions;
use crate::spec::ModelSpec;

/// Predicts memory, communication and time of a run on `world` ranks. Needs
/// neither data nor weights, only the model config of the weights. Counts the
/// documents if the data and the tokenizer are available locally.
pub fn dry_run(
    config: &Config,
    hub: &Hub,
    extensions: &Extensions,
    world: usize,
) -> Result<DryRun, TrainError> {
    let resolved = ResolvedConfig::new(config, hub)?;
    let config = &resolved.config;
    let spec = extensions.specs.find(hub, &config.model.name)?;
    let weights_config = match (&config.model.weights_path, &config.model.arch) {
        (Some(path), None) => Some(known_config(hub, &*spec, path)?),
        _ => None,
    };
    let plan = ModelPlan::new(config, &*spec, weights_config.as_ref(), world)?;
    let ModelPlan { definition, parallel, dims, stages, .. } = plan;
    let registered = (&*spec, extensions);
    let mut loaded = loader(config, hub, registered, definition.vocabulary()).transpose();
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
    let settings = DryRunSettings {
        config,
        definition: &*definition,
        parallel: &parallel,
        stages: &stages,
        sizes: dims.gang_sizes(),
        world,
        data,
        extensions,
    };
    let mut report = dry_run::run(&settings)?;
    if let Err(error) = &summary {
        report.data = DataReport::Failed { reason: error.to_string() };
    }
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
    };
    Some(Loader::new(settings))
}
