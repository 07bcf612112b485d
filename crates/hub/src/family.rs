//! A kind of models: how its configurations and checkpoints are read.

use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_nn::{DecoderConfig, Parallel};

use crate::config::{ConfigError, FamilyConfig, Fields, overridden};

/// A kind of models. Rust code adds one by implementing this and registering
/// it with [`Families`](crate::Families).
pub trait Family: Send + Sync + 'static {
    /// Its configuration.
    type Config: FamilyConfig;

    /// Its name, as cards say it.
    fn name(&self) -> &str;

    /// What the `model_type` of a `config.json` can be.
    fn model_types(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }

    /// What the published models call their class.
    fn architecture(&self) -> String;

    /// Named presets of its configuration.
    fn archs(&self) -> Vec<(String, Self::Config)>;

    /// The decoder that a configuration means.
    fn decoder(&self, config: &Self::Config) -> Result<DecoderConfig, ConfigError>;

    /// From the names in a published checkpoint, which is given, to those of
    /// the decoder's parameters.
    fn keys(&self, _config: &Self::Config, _index: &Index) -> KeyMap {
        KeyMap::default()
    }

    /// What tensor parallelism shares.
    fn parallel(&self) -> Parallel {
        Parallel::default()
    }
}

/// A family whose configuration is a map: what the global loader and all tools
/// work with.
pub trait AnyFamily: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;
    /// What the `model_type` of a `config.json` can be.
    fn model_types(&self) -> Vec<String>;
    /// What the published models call their class.
    fn architecture(&self) -> String;
    /// Names of its presets.
    fn archs(&self) -> Vec<String>;
    /// A preset, if there is one of that name.
    fn maybe_arch_config(&self, arch: &str) -> Option<Map<String, Value>>;
    /// A configuration with all keys, from one that may lack some.
    fn complete(&self, config: &Map<String, Value>) -> Result<Map<String, Value>, ConfigError>;
    /// A configuration with overrides, all of whose keys must be known.
    fn overridden(
        &self,
        config: &Map<String, Value>,
        overrides: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError>;
    /// The decoder that a configuration means.
    fn decoder(&self, config: &Map<String, Value>) -> Result<DecoderConfig, ConfigError>;
    /// From the names in a checkpoint to those of the decoder's parameters.
    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, ConfigError>;
    /// What tensor parallelism shares.
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

    fn overridden(
        &self,
        config: &Map<String, Value>,
        overrides: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError> {
        self.complete(&overridden(config, overrides)?)
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

/// A family that is shared.
pub type SharedFamily = Arc<dyn AnyFamily>;
