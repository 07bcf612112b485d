//! The families there are.

use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_errors::{Hint, nearest};

use crate::family::{AnyFamily, SharedFamily};

/// The families there are, by name. Filled when a program starts, and the same
/// in every process from then on: nothing registers itself on the side.
#[derive(Clone, Default)]
pub struct Families {
    all: Vec<SharedFamily>,
}

/// What is wrong with a family's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FamilyError {
    /// No family of that name.
    #[error("there is no model family `{name}`")]
    Unknown { name: String, near: Option<String>, known: Vec<String> },
    /// Two families of one name.
    #[error("there is a model family `{name}` already")]
    Twice { name: String },
    /// A `config.json` of no family.
    #[error("no family has models of type `{model_type}`")]
    ModelType { model_type: String, near: Option<String>, known: Vec<String> },
    /// A `config.json` that does not say what it is.
    #[error("the configuration does not say its `model_type`")]
    NoModelType,
    /// No preset of that name.
    #[error("the family `{family}` has no arch `{arch}`")]
    Arch { family: String, arch: String, near: Option<String>, known: Vec<String> },
}

impl Hint for FamilyError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { near: Some(near), .. }
            | Self::Arch { near: Some(near), .. }
            | Self::ModelType { near: Some(near), .. } => Some(format!("write `{near}`")),
            Self::Unknown { known, .. } => Some(format!("known families: {}", known.join(", "))),
            Self::Arch { known, .. } => Some(format!("known archs: {}", known.join(", "))),
            Self::ModelType { known, .. } => {
                Some(format!("known types: {}; others can be described in a model.yaml", known.join(", ")))
            }
            Self::Twice { .. } => Some("give one of them another name".to_owned()),
            Self::NoModelType => {
                Some("add a `model_type` to config.json, or name the model by a card".to_owned())
            }
        }
    }
}

impl Families {
    /// No families.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a family.
    pub fn register(&mut self, family: impl AnyFamily + 'static) -> Result<(), FamilyError> {
        if self.maybe_get(family.name()).is_some() {
            return Err(FamilyError::Twice { name: family.name().to_owned() });
        }
        self.all.push(Arc::new(family));
        Ok(())
    }

    /// All families, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &SharedFamily> {
        self.all.iter()
    }

    /// A family, if there is one of that name.
    pub fn maybe_get(&self, name: &str) -> Option<&SharedFamily> {
        self.all.iter().find(|family| family.name() == name)
    }

    /// A family.
    pub fn get(&self, name: &str) -> Result<&SharedFamily, FamilyError> {
        self.maybe_get(name).ok_or_else(|| {
            let known: Vec<String> = self.all.iter().map(|family| family.name().to_owned()).collect();
            let near = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
            FamilyError::Unknown { name: name.to_owned(), near, known }
        })
    }

    /// The family of a `config.json`.
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

/// A family's preset.
pub fn arch_config(family: &dyn AnyFamily, arch: &str) -> Result<Map<String, Value>, FamilyError> {
    family.maybe_arch_config(arch).ok_or_else(|| {
        let known = family.archs();
        let near = nearest(arch, known.iter().map(String::as_str)).map(str::to_owned);
        FamilyError::Arch { family: family.name().to_owned(), arch: arch.to_owned(), near, known }
    })
}
