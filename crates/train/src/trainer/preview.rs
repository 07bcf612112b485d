//! The data of a config as a run would use it, without a run.

use std::sync::Arc;

use serde::Serialize;
use weightloom_hub::Hub;
use weightloom_hub::fetch::FetchObserver;

use super::build::load_tokenizer;
use super::checks::check_arch;
use super::dataset::{ResolvedConfig, data_cache};
use super::weights::open_weights;
use crate::config::Config;
use crate::data::{DataSettings, DataSummary, Epochs, Example, Loader};
use crate::error::TrainError;
use crate::extensions::Extensions;

/// The data of a config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataPreview {
    /// The card of the dataset, if the config names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// The first documents in the order of training.
    pub examples: Vec<Example>,
    /// The account of all documents, or of the first ones of large data.
    pub summary: DataSummary,
}

/// Reads the data of a config: the first `examples` documents, and the account of
/// all. Loads the tokenizer and the model config, but no weights into memory.
pub fn preview_data(
    config: &Config,
    hub: &Hub,
    extensions: &Extensions,
    examples: usize,
    fetching: &dyn FetchObserver,
) -> Result<DataPreview, TrainError> {
    let resolved = ResolvedConfig::new(config, hub, Some(fetching))?;
    let config = &resolved.config;
    let spec = extensions.specs.find(hub, &config.model.name)?;
    check_arch(config, hub, &*spec)?;
    let weights = config.model.weights_path.as_deref();
    let weights = weights.map(|path| open_weights(hub, &*spec, path, fetching)).transpose()?;
    let model = spec.config(&config.model, weights.as_ref().map(weightloom_hub::Model::config))?;
    let definition = spec.definition(&model)?;
    let text = load_tokenizer(config, hub, weights.as_ref(), fetching)?;
    let loss = extensions.losses.build(&config.train.loss)?;
    let settings = DataSettings {
        config: config.data.clone(),
        tokenizer: text.tokenizer,
        templates: Arc::new(text.templates),
        seed: config.train.seed,
        vocabulary: definition.vocabulary(),
        epochs: Epochs::Endless,
        formats: extensions.formats.clone(),
        cache: data_cache(hub),
    };
    let mut loader = Loader::supervised(settings, loss.needs().documents)?;
    Ok(DataPreview {
        dataset: resolved.dataset(),
        examples: loader.examples(examples)?,
        summary: loader.summary(&mut |_| {})?,
    })
}
