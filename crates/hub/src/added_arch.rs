//! A family with a preset that a program adds.

use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_nn::{Parallel, SharedDefinition};

use crate::config::ConfigError;
use crate::family::{AnyFamily, FamilyTypes, SharedFamily};

/// A family with a preset that a program adds.
pub(crate) struct AddedArch {
    pub(crate) family: SharedFamily,
    pub(crate) arch: String,
    /// Complete.
    pub(crate) config: Map<String, Value>,
}

impl AnyFamily for AddedArch {
    fn name(&self) -> &str {
        self.family.name()
    }

    fn model_types(&self) -> Vec<String> {
        self.family.model_types()
    }

    fn architecture(&self) -> String {
        self.family.architecture()
    }

    fn archs(&self) -> Vec<String> {
        let mut archs = self.family.archs();
        archs.push(self.arch.clone());
        archs
    }

    fn maybe_arch_config(&self, arch: &str) -> Option<Map<String, Value>> {
        match arch == self.arch {
            true => Some(self.config.clone()),
            false => self.family.maybe_arch_config(arch),
        }
    }

    fn complete(&self, config: &Map<String, Value>) -> Result<Map<String, Value>, ConfigError> {
        self.family.complete(config)
    }

    fn with_overrides(
        &self,
        config: &Map<String, Value>,
        overrides: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError> {
        self.family.with_overrides(config, overrides)
    }

    fn definition(&self, config: &Map<String, Value>) -> Result<SharedDefinition, ConfigError> {
        self.family.definition(config)
    }

    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, ConfigError> {
        self.family.keys(config, index)
    }

    fn parallel(&self) -> Parallel {
        self.family.parallel()
    }

    fn types(&self) -> Option<FamilyTypes> {
        self.family.types()
    }
}
