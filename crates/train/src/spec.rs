//! What a model is to a trainer: its spec.
//!
//! A spec gives a model's configuration and decoder, how its parameters are
//! shared, how its layers are cut into stages, what its checkpoints call
//! things, and how its gradients are kept small. Most models are a family of
//! the hub, and [`FamilySpec`] says all of that for them. A spec in code
//! replaces what it does differently.

mod clip;
mod error;
mod family;
mod name;
mod sharing;
mod specs;
mod split;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap, KeyRule};
use weightloom_hub::SharedFamily;
use weightloom_nn::{DecoderConfig, Parallel, Stage};

use crate::config::ModelConfig;

pub use clip::clip_factor;
pub use error::{Namesake, SpecError};
pub use family::FamilySpec;
pub use name::NameFault;
pub use sharing::with_plan;
pub use specs::Specs;
pub use split::stages;

/// What a model is to a trainer.
pub trait ModelSpec: Send + Sync {
    /// Its name, for those who read errors.
    fn name(&self) -> &str;

    /// The model's configuration with all keys: the arch that a run names, or
    /// else what the weights say of themselves, with the run's changes.
    fn config(
        &self,
        model: &ModelConfig,
        of_weights: Option<&Map<String, Value>>,
    ) -> Result<Map<String, Value>, SpecError>;

    /// The decoder that a configuration means.
    fn decoder(&self, config: &Map<String, Value>) -> Result<DecoderConfig, SpecError>;

    /// What tensor parallelism shares, before a run says otherwise.
    fn parallel(&self) -> Parallel {
        Parallel::default()
    }

    /// What tensor parallelism shares, with a run's changes.
    fn sharing(
        &self,
        decoder: &DecoderConfig,
        tp_plan: &BTreeMap<String, usize>,
    ) -> Result<Parallel, SpecError> {
        with_plan(self.parallel(), decoder, tp_plan)
    }

    /// The stages of a pipeline: as many as asked for, as even as can be or
    /// with as many layers each as the split says.
    fn stages(
        &self,
        decoder: &DecoderConfig,
        count: usize,
        layer_split: Option<&[usize]>,
    ) -> Result<Vec<Stage>, SpecError> {
        stages(decoder.layers, count, layer_split)
    }

    /// From the names in a published checkpoint, which is given, to those of
    /// the decoder's parameters.
    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, SpecError>;

    /// The way back: from the names of the decoder's parameters to those that
    /// published checkpoints have.
    fn published_keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, SpecError> {
        let there = self.keys(config, index)?;
        // What was dropped stays away.
        let rules = there.rules.into_iter().filter(|rule| !matches!(rule, KeyRule::Drop { .. })).collect();
        Ok(KeyMap { rules }.inverse()?)
    }

    /// What gradients are multiplied by, given the norm of all of them together
    /// and the largest that is wanted; 0 for any.
    fn clip_factor(&self, norm: f64, limit: f64) -> f64 {
        clip_factor(norm, limit)
    }

    /// The family of the hub that it belongs to, if there is one.
    fn family(&self) -> Option<SharedFamily> {
        None
    }
}

/// A spec that is shared.
pub type SharedSpec = Arc<dyn ModelSpec>;
