//! Registry of model families.

use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_errors::{Hint, did_you_mean, nearest};

use crate::added_arch::AddedArch;
use crate::config::ConfigError;
use crate::family::{AnyFamily, FamilyTypes, SharedFamily};

/// Registry of model families, by name. Filled at program start; nothing
/// registers itself.
#[derive(Clone, Default)]
pub struct Families {
    all: Vec<SharedFamily>,
}

/// An unknown or ambiguous family, model type or arch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FamilyError {
    #[error("unknown model family `{name}`")]
    Unknown { name: String, near: Option<String>, known: Vec<String> },
    #[error("model family `{name}` is already registered")]
    Duplicate { name: String },
    #[error("unknown model type `{model_type}`")]
    ModelType { model_type: String, near: Option<String>, known: Vec<String> },
    #[error("missing key `model_type` in the configuration")]
    NoModelType,
    #[error("model family `{name}` has {}, not {expected}", listed(found.as_ref()))]
    Types { name: String, expected: FamilyTypes, found: Option<FamilyTypes> },
    #[error("model family `{family}` already has an arch `{arch}`")]
    DuplicateArch { family: String, arch: String },
    #[error("cannot add the arch `{arch}` to model family `{family}`: {problem}")]
    InvalidArch { family: String, arch: String, problem: ConfigError },
    #[error("model family `{family}` has no arch `{arch}`")]
    Arch { family: String, arch: String, near: Option<String>, known: Vec<String> },
}

fn listed(types: Option<&FamilyTypes>) -> String {
    types.map_or_else(|| "no types, because a file describes it".to_owned(), ToString::to_string)
}

impl Hint for FamilyError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { near: Some(near), .. }
            | Self::Arch { near: Some(near), .. }
            | Self::ModelType { near: Some(near), .. } => did_you_mean(Some(near)),
            Self::Unknown { known, .. } => Some(format!("use one of the families {}", known.join(", "))),
            Self::Arch { known, .. } => Some(format!("use one of the archs {}", known.join(", "))),
            Self::ModelType { known, .. } => Some(format!(
                "use one of the types {}, or describe the family in a `model.yaml`",
                known.join(", ")
            )),
            Self::Types { .. } => Some("use the family type that was registered".to_owned()),
            Self::Duplicate { .. } | Self::DuplicateArch { .. } => Some("rename one of them".to_owned()),
            Self::InvalidArch { problem, .. } => problem.hint(),
            Self::NoModelType => {
                Some("add `model_type` to `config.json`, or write a card for the model".to_owned())
            }
        }
    }
}

impl Families {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a family.
    pub fn register(&mut self, family: impl AnyFamily + 'static) -> Result<(), FamilyError> {
        if self.maybe_get(family.name()).is_some() {
            return Err(FamilyError::Duplicate { name: family.name().to_owned() });
        }
        self.all.push(Arc::new(family));
        Ok(())
    }

    /// Adds a preset to a family.
    pub fn register_arch(
        &mut self,
        family: &str,
        arch: &str,
        config: &Map<String, Value>,
    ) -> Result<(), FamilyError> {
        let found = Arc::clone(self.get(family)?);
        let (family, arch) = (family.to_owned(), arch.to_owned());
        if found.archs().contains(&arch) {
            return Err(FamilyError::DuplicateArch { family, arch });
        }
        let complete = found.complete(config).and_then(|config| found.definition(&config).map(|_| config));
        let config = match complete {
            Ok(config) => config,
            Err(problem) => return Err(FamilyError::InvalidArch { family, arch, problem }),
        };
        let added: SharedFamily = Arc::new(AddedArch { family: found, arch, config });
        for known in self.all.iter_mut().filter(|known| known.name() == family) {
            *known = Arc::clone(&added);
        }
        Ok(())
    }

    /// All families, in the order of registration.
    pub fn iter(&self) -> impl Iterator<Item = &SharedFamily> {
        self.all.iter()
    }

    /// A family, if it exists.
    pub fn maybe_get(&self, name: &str) -> Option<&SharedFamily> {
        self.all.iter().find(|family| family.name() == name)
    }

    /// A family by name.
    pub fn get(&self, name: &str) -> Result<&SharedFamily, FamilyError> {
        self.maybe_get(name).ok_or_else(|| {
            let known: Vec<String> = self.all.iter().map(|family| family.name().to_owned()).collect();
            let near = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
            FamilyError::Unknown { name: name.to_owned(), near, known }
        })
    }

    /// The family of a `config.json`, by its `model_type`.
    pub fn of_config(&self, config: &Map<String, Value>) -> Result<&SharedFamily, FamilyError> {
        let Some(model_type) = config.get("model_type").and_then(Value::as_str) else {
            return Err(FamilyError::NoModelType);
        };
        let known: Vec<String> = self.all.iter().flat_map(|family| family.model_types()).collect();
        let found =
            self.all.iter().find(|family| family.model_types().iter().any(|known| known == model_type));
        found.ok_or_else(|| {
            let near = nearest(model_type, known.iter().map(String::as_str)).map(str::to_owned);
            FamilyError::ModelType { model_type: model_type.to_owned(), near, known: known.clone() }
        })
    }
}

/// The configuration of an arch, a named preset of a family.
pub fn arch_config(family: &dyn AnyFamily, arch: &str) -> Result<Map<String, Value>, FamilyError> {
    family.maybe_arch_config(arch).ok_or_else(|| {
        let known = family.archs();
        let near = nearest(arch, known.iter().map(String::as_str)).map(str::to_owned);
        FamilyError::Arch { family: family.name().to_owned(), arch: arch.to_owned(), near, known }
    })
}
