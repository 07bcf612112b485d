//! The checks of a config that training and dry runs share, so that both refuse the
//! same ones.

use std::collections::BTreeSet;

use weightloom_checkpoint::Source;
use weightloom_hub::{Hub, Model, adapter_folder};
use weightloom_nn::ModelDefinition;

use super::adapter;
use crate::config::{Config, DataType, LoraConfig};
use crate::data::DataError;
use crate::error::TrainError;
use crate::extensions::Extensions;
use crate::lora_target::{check_targets, linear_modules};
use crate::optimizer::{Patterns, WeightDecay};
use crate::spec::{ModelSpec, SpecError};

/// Checks what needs no model.
pub(super) fn check_config(config: &Config, extensions: &Extensions) -> Result<(), TrainError> {
    let checkpoint = &config.train.checkpoint;
    let unknown = |key| move |unknown| TrainError::Planner { key, unknown };
    extensions.save_planners.find(checkpoint.save_planner.name()).map_err(unknown("save_planner"))?;
    extensions.load_planners.find(checkpoint.load_planner.name()).map_err(unknown("load_planner"))?;
    let (model, is_dummy) = (&config.model, config.data.r#type == DataType::Dummy);
    if model.lora.is_some() && model.weights_path.is_none() {
        return Err(TrainError::NoBase);
    }
    if !is_dummy && model.tokenizer_path.is_none() && model.weights_path.is_none() {
        return Err(TrainError::NoTokenizer);
    }
    if config.train.eval.early_stopping.is_some() && !config.data.has_eval_data() {
        return Err(TrainError::NoEvalData);
    }
    match config.train.max_steps {
        None if is_dummy => return Err(DataError::NoEpochs.into()),
        // With epochs, their number of steps is known only after counting documents.
        None => {}
        Some(steps) => {
            extensions.schedules.build(config.train.optimizer.lr, &config.train.schedule, steps)?;
        }
    }
    Ok(())
}

/// Names the family of an arch of another one.
pub(super) fn check_arch(config: &Config, hub: &Hub, spec: &dyn ModelSpec) -> Result<(), TrainError> {
    let (Some(arch), Some(family)) = (&config.model.arch, spec.family()) else { return Ok(()) };
    let archs = family.archs();
    let has_arch = |archs: &[String]| archs.iter().any(|known| known == arch);
    if has_arch(&archs) {
        return Ok(());
    }
    match hub.families.iter().find(|other| has_arch(&other.archs())) {
        None => Ok(()),
        Some(other) => {
            let (spec, family) = (config.model.name.clone(), other.name().to_owned());
            Err(SpecError::OtherArch { spec, arch: arch.clone(), family, archs }.into())
        }
    }
}

/// Patterns of a config that match parameters of its model.
pub(super) struct ParameterPatterns {
    pub(super) frozen: Patterns,
    pub(super) decay: WeightDecay,
}

impl ParameterPatterns {
    /// Checks all names of parameters and modules.
    pub(super) fn new(config: &Config, definition: &dyn ModelDefinition) -> Result<Self, TrainError> {
        let names: Vec<String> = definition.all_parameters().into_iter().map(|spec| spec.name).collect();
        let frozen = Patterns::new("model.freeze_modules", &config.model.freeze_modules)?;
        frozen.check(names.iter().map(String::as_str))?;
        if config.model.lora.is_none() && names.iter().all(|name| frozen.matches(name)) {
            return Err(TrainError::AllFrozen { parameters: names.len() });
        }
        let decay = WeightDecay::new(&config.train.optimizer, names.iter().map(String::as_str))?;
        // An existing adapter has its own targets.
        if let Some(lora) = config.model.lora.as_ref().filter(|lora| lora.adapter_path.is_none()) {
            check_targets(lora, definition)?;
        }
        Ok(Self { frozen, decay })
    }
}

/// Fails if weights are of another family than the spec.
pub(super) fn check_family(spec: &dyn ModelSpec, weights: &Model) -> Result<(), TrainError> {
    match spec.family() {
        Some(family) if family.name() != weights.family().name() => Err(TrainError::OtherFamily {
            spec: family.name().to_owned(),
            found: weights.family().name().to_owned(),
            weights: weights.name().to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Fails if an adapter of these weights could not be loaded or saved.
pub(super) fn check_adapter(
    lora: &LoraConfig,
    definition: &dyn ModelDefinition,
    weights: &Model,
) -> Result<(), TrainError> {
    if let Some(path) = &lora.adapter_path {
        Source::open(adapter_folder(path.as_ref())?)?;
        return Ok(());
    }
    let keys = weights.published_keys()?;
    let modules = linear_modules(definition).into_iter().filter(|module| lora.adapts(module));
    let modules: BTreeSet<String> = modules.collect();
    match modules.into_iter().find(|module| adapter::is_foreign(module, &keys)) {
        None => Ok(()),
        Some(module) => {
            let family = weights.family().name().to_owned();
            Err(TrainError::ForeignModules { family, module })
        }
    }
}
