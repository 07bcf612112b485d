//! The planners of saves and loads that configs may name.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_checkpoint::plan::{LoadPlannerFactory, SavePlannerFactory, StandardPlanners};
use weightloom_document::schema::Choice;

use crate::extensions::{NoOptions, RegisterError, Registry, UnknownName, section_of};

/// A planner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = crate::extensions::one_of)]
pub enum PlannerKind {
    /// The built-in one.
    #[default]
    Standard,
    /// One that the program has registered with [`SavePlanners`] or
    /// [`LoadPlanners`].
    #[serde(untagged)]
    #[schemars(skip)]
    Registered(String),
}

impl PlannerKind {
    /// The name in the config.
    pub fn name(&self) -> &str {
        match self {
            Self::Standard => "standard",
            Self::Registered(name) => name,
        }
    }
}

const STANDARD: &str = "`standard` is the first, and has no options";

/// The planners of saves that configs may name, with those of your own crate.
#[derive(Clone, Debug)]
pub struct SavePlanners(Registry<dyn SavePlannerFactory>);

impl Default for SavePlanners {
    fn default() -> Self {
        Self::standard()
    }
}

impl SavePlanners {
    /// The built-in planner.
    pub fn standard() -> Self {
        Self(Registry::new("save planner")).with(StandardPlanners).expect(STANDARD)
    }

    /// The same planners and another one.
    pub fn with(mut self, factory: impl SavePlannerFactory + 'static) -> Result<Self, RegisterError> {
        self.register(factory)?;
        Ok(self)
    }

    /// Adds a planner.
    pub fn register(&mut self, factory: impl SavePlannerFactory + 'static) -> Result<(), RegisterError> {
        let about = (factory.name(), factory.summary());
        self.0.add(about, section_of::<NoOptions>, Arc::new(factory))
    }

    /// All names, the built-in one first.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    /// The planner with a name.
    pub fn find(&self, name: &str) -> Result<Arc<dyn SavePlannerFactory>, UnknownName> {
        self.0.shared(name)
    }

    pub(crate) fn choices(&self) -> Vec<Choice> {
        self.0.choices()
    }
}

/// The planners of loads that configs may name, with those of your own crate.
#[derive(Clone, Debug)]
pub struct LoadPlanners(Registry<dyn LoadPlannerFactory>);

impl Default for LoadPlanners {
    fn default() -> Self {
        Self::standard()
    }
}

impl LoadPlanners {
    /// The built-in planner.
    pub fn standard() -> Self {
        Self(Registry::new("load planner")).with(StandardPlanners).expect(STANDARD)
    }

    /// The same planners and another one.
    pub fn with(mut self, factory: impl LoadPlannerFactory + 'static) -> Result<Self, RegisterError> {
        self.register(factory)?;
        Ok(self)
    }

    /// Adds a planner.
    pub fn register(&mut self, factory: impl LoadPlannerFactory + 'static) -> Result<(), RegisterError> {
        let about = (factory.name(), factory.summary());
        self.0.add(about, section_of::<NoOptions>, Arc::new(factory))
    }

    /// All names, the built-in one first.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    /// The planner with a name.
    pub fn find(&self, name: &str) -> Result<Arc<dyn LoadPlannerFactory>, UnknownName> {
        self.0.shared(name)
    }

    pub(crate) fn choices(&self) -> Vec<Choice> {
        self.0.choices()
    }
}
