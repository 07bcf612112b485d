//! How verdicts are reached.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How verdicts are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Statistics {
    /// Paired tests against noise of the adapter's size.
    #[default]
    Paired,
    /// The rules of dlm-sway, probe by probe.
    Reference,
}

impl Statistics {
    /// Both ways, the default first.
    pub const ALL: [Self; 2] = [Self::Paired, Self::Reference];

    /// The name in suite files and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paired => "paired",
            Self::Reference => "reference",
        }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is neither `paired` nor `reference`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown statistics `{0}`: use `paired` or `reference`")]
pub struct UnknownStatistics(pub String);

impl FromStr for Statistics {
    type Err = UnknownStatistics;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| UnknownStatistics(name.to_owned()))
    }
}
