//! The spec of a family of the hub.

use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, SharedFamily, arch_config};
use weightloom_nn::{DecoderConfig, Parallel};

use super::ModelSpec;
use super::error::SpecError;
use crate::config::ModelConfig;

/// The spec of a family, compiled or described in a file.
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
        let about = format!("{what} of `{}`", self.family.name());
        move |source| SpecError::Config { about: about.clone(), source }
    }

    /// Weights that say they are something else.
    fn check_type(&self, of_weights: &Map<String, Value>) -> Result<(), SpecError> {
        let reads = self.family.model_types();
        let name = self.family.name();
        // A described family that says nothing of types is called by its path,
        // which no weights are.
        let says_nothing = name.contains('.') && reads.iter().all(|read| read == name);
        match of_weights.get("model_type").and_then(Value::as_str) {
            Some(found) if !says_nothing && !reads.iter().any(|read| read == found) => {
                Err(SpecError::OtherModel { spec: name.to_owned(), found: found.to_owned(), reads })
            }
            _ => Ok(()),
        }
    }
}

impl ModelSpec for FamilySpec {
    fn name(&self) -> &str {
        self.family.name()
    }

    fn config(
        &self,
        model: &ModelConfig,
        of_weights: Option<&Map<String, Value>>,
    ) -> Result<Map<String, Value>, SpecError> {
        if let Some(config) = of_weights {
            self.check_type(config)?;
        }
        let changes = &model.config_overrides;
        let base = match (&model.arch, of_weights) {
            (Some(arch), _) => arch_config(&*self.family, arch)?,
            (None, Some(config)) => {
                self.family.complete(config).map_err(self.about("the weights' configuration"))?
            }
            // The changes may say everything.
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

    fn decoder(&self, config: &Map<String, Value>) -> Result<DecoderConfig, SpecError> {
        self.family.decoder(config).map_err(self.about("the configuration"))
    }

    fn parallel(&self) -> Parallel {
        self.family.parallel()
    }

    fn keys(&self, config: &Map<String, Value>, index: &Index) -> Result<KeyMap, SpecError> {
        self.family.keys(config, index).map_err(self.about("the configuration"))
    }

    fn family(&self) -> Option<SharedFamily> {
        Some(SharedFamily::clone(&self.family))
    }
}
