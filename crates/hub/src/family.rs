//! Model families: their configurations and checkpoints.

use std::any::{TypeId, type_name};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_nn::{Model, Parallel, SharedDefinition};

use crate::config::{ConfigError, FamilyConfig, Fields, apply_overrides};

/// A model family. Implement it and register it with
/// [`Families`](crate::Families) to add one in Rust.
pub trait Family: Send + Sync + 'static {
    /// Typed configuration.
    type Config: FamilyConfig;

    /// Type of the models that [`definition`](Self::definition) builds.
    type Model: Model;

    /// Name in cards.
    fn name(&self) -> &str;

    /// Values of `model_type` in `config.json`.
    fn model_types(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }

    /// Class name of published models.
    fn architecture(&self) -> String;

    /// Named presets of the configuration.
    fn archs(&self) -> Vec<(String, Self::Config)>;

    /// The model of a configuration.
    fn definition(&self, config: &Self::Config) -> Result<SharedDefinition, ConfigError>;

    /// Mapping from the names in a published checkpoint to those of the model's
    /// parameters.
    fn keys(&self, _config: &Self::Config, _index: &Index) -> KeyMap {
        KeyMap::default()
    }

    /// Tensor-parallel sharding.
    fn parallel(&self) -> Parallel {
        Parallel::default()
    }
}

/// An object-safe family with an untyped configuration.
pub trait AnyFamily: Send + Sync {
    /// Name in cards.
    fn name(&self) -> &str;
    /// Values of `model_type` in `config.json`.
    fn model_types(&self) -> Vec<String>;
    /// Class name of published models.
    fn architecture(&self) -> String;
    /// Names of the presets.
    fn archs(&self) -> Vec<String>;
    /// A preset, if it exists.
    fn maybe_arch_config(&self, arch: &str) -> Option<Map<String, Value>>;
    /// Adds defaults for missing keys.
    fn complete(&self, config: &Map<String, Value>) -> Result<Map<String, Value>, ConfigError>;
    /// Applies overrides, all of whose keys must be known.
    fn with_overrides(
        &self,
        config: &Map<String, Value>,
        overrides: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError>;
    /// The model of a configuration.
    fn definition(&self, config: &Map<String, Value>) -> Result<SharedDefinition, ConfigError>;
    /// Mapping from the names in a checkpoint to those of the model's parameters.
    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, ConfigError>;
    /// Tensor-parallel sharding.
    fn parallel(&self) -> Parallel;
    /// The types of the configuration and of the models; `None` for a family whose
    /// configuration has no type.
    fn types(&self) -> Option<FamilyTypes>;
}

/// The types of a family's configuration and models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyTypes {
    config: (TypeId, &'static str),
    model: (TypeId, &'static str),
}

impl FamilyTypes {
    pub(crate) fn of<F: Family>() -> Self {
        Self {
            config: (TypeId::of::<F::Config>(), type_name::<F::Config>()),
            model: (TypeId::of::<F::Model>(), type_name::<F::Model>()),
        }
    }
}

impl fmt::Display for FamilyTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configurations `{}` and models `{}`", self.config.1, self.model.1)
    }
}

impl<F: Family> AnyFamily for F {
    fn name(&self) -> &str {
        Family::name(self)
    }

    fn model_types(&self) -> Vec<String> {
        Family::model_types(self)
    }

    fn architecture(&self) -> String {
        Family::architecture(self)
    }

    fn archs(&self) -> Vec<String> {
        Family::archs(self).into_iter().map(|(name, _)| name).collect()
    }

    fn maybe_arch_config(&self, arch: &str) -> Option<Map<String, Value>> {
        Family::archs(self).into_iter().find(|(name, _)| name == arch).map(|(_, config)| config.to_map())
    }

    fn complete(&self, config: &Map<String, Value>) -> Result<Map<String, Value>, ConfigError> {
        Ok(F::Config::read(Fields::new(config))?.to_map())
    }

    fn with_overrides(
        &self,
        config: &Map<String, Value>,
        overrides: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError> {
        self.complete(&apply_overrides(config, overrides)?)
    }

    fn definition(&self, config: &Map<String, Value>) -> Result<SharedDefinition, ConfigError> {
        let definition = Family::definition(self, &F::Config::read(Fields::new(config))?)?;
        definition.check().map_err(ConfigError::from_model)?;
        Ok(definition)
    }

    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, ConfigError> {
        Ok(Family::keys(self, &F::Config::read(Fields::new(config))?, index))
    }

    fn parallel(&self) -> Parallel {
        Family::parallel(self)
    }

    fn types(&self) -> Option<FamilyTypes> {
        Some(FamilyTypes::of::<F>())
    }
}

/// A shared family.
pub type SharedFamily = Arc<dyn AnyFamily>;
