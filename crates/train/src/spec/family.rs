//! The spec of a hub family.

use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{AnyFamily, ConfigError, SharedFamily, arch_config};
use weightloom_nn::{Parallel, SharedDefinition};

use super::ModelSpec;
use super::error::SpecError;
use crate::config::ModelConfig;

/// The spec of a family, compiled in or described in a file.
#[derive(Clone)]
pub struct FamilySpec {
    family: SharedFamily,
}

impl FamilySpec {
    /// The spec of a family.
    pub fn new(family: SharedFamily) -> Self {
        Self { family }
    }

    fn about(&self, what: &str) -> impl Fn(ConfigError) -> SpecError {
        let about = format!("{what} for `{}`", self.family.name());
        move |source| SpecError::Config { about: about.clone(), source }
    }

    /// Fails if the weights are of another model type.
    fn check_type(&self, weights_config: &Map<String, Value>) -> Result<(), SpecError> {
        let reads = self.family.model_types();
        let name = self.family.name();
        let reads_any = reads_any_type(&*self.family);
        match weights_config.get("model_type").and_then(Value::as_str) {
            Some(found) if !reads_any && !reads.iter().any(|read| read == found) => {
                Err(SpecError::OtherModel { spec: name.to_owned(), found: found.to_owned(), reads })
            }
            _ => Ok(()),
        }
    }
}

/// Whether a family is described without a model type, so that it reads weights of
/// any. Its own path is then its only type.
pub(crate) fn reads_any_type(family: &dyn AnyFamily) -> bool {
    let name = family.name();
    name.contains('.') && family.model_types().iter().all(|read| read == name)
}

impl ModelSpec for FamilySpec {
    fn name(&self) -> &str {
        self.family.name()
    }

    fn config(
        &self,
        model: &ModelConfig,
        weights_config: Option<&Map<String, Value>>,
    ) -> Result<Map<String, Value>, SpecError> {
        if let Some(config) = weights_config {
            self.check_type(config)?;
        }
        let changes = &model.config_overrides;
        let base = match (&model.arch, weights_config) {
            (Some(arch), _) => arch_config(&*self.family, arch)?,
            (None, Some(config)) => {
                self.family.complete(config).map_err(self.about("model config of the weights"))?
            }
            // The overrides may be complete.
            (None, None) => self.family.complete(changes).map_err(|error| match error {
                ConfigError::Missing { key } => {
                    let (spec, archs) = (self.family.name().to_owned(), self.family.archs());
                    SpecError::NoSize { spec, key, archs }
                }
                other => self.about("model.config_overrides")(other),
            })?,
        };
        self.family.with_overrides(&base, changes).map_err(self.about("model.config_overrides"))
    }

    fn definition(&self, config: &Map<String, Value>) -> Result<SharedDefinition, SpecError> {
        self.family.definition(config).map_err(self.about("model config"))
    }

    fn parallel(&self) -> Parallel {
        self.family.parallel()
    }

    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, SpecError> {
        self.family.keys(config, index).map_err(self.about("model config"))
    }

    fn family(&self) -> Option<SharedFamily> {
        Some(SharedFamily::clone(&self.family))
    }
}
