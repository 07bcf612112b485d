//! A run that is only thought through.

use std::sync::Arc;

use weightloom_hub::Hub;
use weightloom_hub::cards::ModelAddress;

use super::blueprint::Blueprint;
use super::build::texts;
use crate::config::{Config, DataType};
use crate::data::{DataSettings, Epochs, Loader};
use crate::dry::{DryRun, DrySettings, dry_run};
use crate::error::TrainError;
use crate::spec::Specs;

/// Says what a run would do on so many ranks. Weights and data need not be
/// there; of weights, what they are must be known.
pub fn rehearse(config: &Config, hub: &Hub, specs: &Specs, world: usize) -> Result<DryRun, TrainError> {
    let spec = specs.discover(hub, &config.model.name)?;
    let of_weights = match (&config.model.weights_path, &config.model.arch) {
        (Some(path), None) => Some(known_config(hub, path)?),
        _ => None,
    };
    let blueprint = Blueprint::new(config, &*spec, of_weights.as_ref(), world)?;
    let Blueprint { decoder, parallel, sizes, stages, .. } = blueprint;
    let data = loader(config, hub, decoder.vocabulary);
    let settings = DrySettings {
        config,
        decoder: &decoder,
        parallel: &parallel,
        stages: &stages,
        sizes: sizes.gang_sizes(),
        world,
        data: data.as_ref(),
    };
    Ok(dry_run(&settings)?)
}

/// What weights are, without fetching them: what their card says, or their own
/// files if they are here.
fn known_config(hub: &Hub, path: &str) -> Result<serde_json::Map<String, serde_json::Value>, TrainError> {
    let found = hub.resolve(path)?;
    if let Some((_, config)) = found.known {
        return Ok(config);
    }
    match found.address {
        Some(ModelAddress::Path(_)) => Ok(hub.open(path, &())?.config().clone()),
        _ => Err(TrainError::UnknownWeights { path: path.to_owned() }),
    }
}

/// The data, if they are here with what makes tokens of them.
fn loader(config: &Config, hub: &Hub, vocabulary: usize) -> Option<Loader> {
    let here =
        |path: &str| matches!(hub.resolve(path).ok()?.address, Some(ModelAddress::Path(_))).then_some(());
    if let Some(path) = config.model.tokenizer_path.as_deref().or(config.model.weights_path.as_deref()) {
        here(path)?;
    } else if config.data.r#type != DataType::Dummy {
        return None;
    }
    let weights = match (&config.model.tokenizer_path, &config.model.weights_path) {
        (None, Some(path)) => Some(hub.open(path, &()).ok()?),
        _ => None,
    };
    let texts = texts(config, hub, weights.as_ref(), &()).ok()?;
    let settings = DataSettings {
        config: config.data.clone(),
        tokenizer: texts.tokenizer,
        templates: Arc::new(texts.templates),
        seed: config.train.seed,
        vocabulary,
        epochs: Epochs::Endless,
    };
    Loader::new(settings).ok()
}
