//! Model families: their configurations and checkpoints.

use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_nn::{DecoderConfig, Parallel};

use crate::config::{ConfigError, FamilyConfig, Fields, apply_overrides};

/// A model family. Implement it and register it with
/// [`Families`](crate::Families) to add one in Rust.
pub trait Family: Send + Sync + 'static {
    /// Typed configuration.
    type Config: FamilyConfig;

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

    /// The decoder of a configuration.
    fn decoder(&self, config: &Self::Config) -> Result<DecoderConfig, ConfigError>;

    /// Mapping from the names in a published checkpoint to the decoder's
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
    /// The decoder of a configuration.
    fn decoder(&self, config: &Map<String, Value>) -> Result<DecoderConfig, ConfigError>;
    /// Mapping from the names in a checkpoint to the decoder's parameters.
    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, ConfigError>;
    /// Tensor-parallel sharding.
    fn parallel(&self) -> Parallel;
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

    fn decoder(&self, config: &Map<String, Value>) -> Result<DecoderConfig, ConfigError> {
        let decoder = Family::decoder(self, &F::Config::read(Fields::new(config))?)?;
        decoder.check()?;
        Ok(decoder)
    }

    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, ConfigError> {
        Ok(Family::keys(self, &F::Config::read(Fields::new(config))?, index))
    }

    fn parallel(&self) -> Parallel {
        Family::parallel(self)
    }
}

/// A shared family.
pub type SharedFamily = Arc<dyn AnyFamily>;
