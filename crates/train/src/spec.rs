//! Model specs: what the trainer needs to know about a model.
//!
//! A spec provides the model config and definition, the tensor-parallel plan, the
//! pipeline split, the key maps of checkpoints, and gradient clipping. Most
//! models are families of the hub, for which [`FamilySpec`] does all of that.
//! Implement [`ModelSpec`] and register it in a [`SpecRegistry`] to change any
//! of it.

mod error;
mod family;
mod grad_clip;
mod name;
mod pipeline_split;
mod registry;
mod tp_plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Format, Index, KeyError, KeyMap};
use weightloom_hub::SharedFamily;
use weightloom_nn::{ModelDefinition, Parallel, SharedDefinition, Stage};

use crate::config::ModelConfig;

pub use error::{Namesake, SpecError};
pub use family::FamilySpec;
pub(crate) use family::reads_any_type;
pub use grad_clip::clip_factor;
pub use name::NameProblem;
pub use pipeline_split::stages;
pub use registry::SpecRegistry;
pub use tp_plan::with_plan;

/// What the trainer needs to know about a model.
pub trait ModelSpec: Send + Sync {
    /// The name in error messages.
    fn name(&self) -> &str;

    /// The complete model config: that of `model.arch` or else of the weights,
    /// with `model.config_overrides`.
    fn config(
        &self,
        model: &ModelConfig,
        weights_config: Option<&Map<String, Value>>,
    ) -> Result<Map<String, Value>, SpecError>;

    /// The definition of the model for a model config.
    fn definition(&self, config: &Map<String, Value>) -> Result<SharedDefinition, SpecError>;

    /// The default tensor-parallel plan.
    fn parallel(&self) -> Parallel {
        Parallel::default()
    }

    /// The tensor-parallel plan with the overrides of `model.tp_plan`.
    fn tp_plan(
        &self,
        definition: &dyn ModelDefinition,
        overrides: &BTreeMap<String, usize>,
    ) -> Result<Parallel, SpecError> {
        with_plan(self.parallel(), definition, overrides)
    }

    /// Splits the layers into `count` pipeline stages, evenly or by
    /// `layer_split`.
    fn stages(
        &self,
        definition: &dyn ModelDefinition,
        count: usize,
        layer_split: Option<&[usize]>,
    ) -> Result<Vec<Stage>, SpecError> {
        stages(definition.layers(), count, layer_split)
    }

    /// The map from the names in a published checkpoint to those of the model's
    /// parameters.
    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, SpecError>;

    /// The inverse: the map from the names of the model's parameters to those in
    /// published checkpoints. The index of one may tell sizes of joined tensors.
    fn published_keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, SpecError> {
        let specs = self.definition(config)?.all_parameters();
        let shapes = specs.into_iter().map(|spec| (spec.name, spec.shape)).collect();
        let none = Index::new(Format::Native, Vec::new(), BTreeMap::new()).map_err(KeyError::from)?;
        Ok(self.keys(config, &none)?.with_sizes_of(index).inverse_for(&shapes)?)
    }

    /// The factor for gradients, given the norm of all of them and the maximum; 0
    /// for no maximum.
    fn clip_factor(&self, norm: f64, limit: f64) -> f64 {
        clip_factor(norm, limit)
    }

    /// The hub family of the model, if it has one.
    fn family(&self) -> Option<SharedFamily> {
        None
    }
}

/// A shared model spec.
pub type SharedSpec = Arc<dyn ModelSpec>;
