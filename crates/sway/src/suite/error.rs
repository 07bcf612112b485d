//! Errors and warnings of a suite file.

use serde::{Deserialize, Serialize};
use weightloom_document::{DocumentError, DocumentErrors, DocumentRule, Origin, Problem};
use weightloom_errors::{Hint, did_you_mean};

use crate::probe::UnknownKind;

/// Every error of a suite file.
pub type SuiteErrors = DocumentErrors<SuiteRule>;
/// One error of a suite file.
pub type SuiteError = DocumentError<SuiteRule>;
/// What is wrong with a value.
pub type SuiteProblem = Problem<SuiteRule>;

/// A value of the right type that breaks a rule of suites.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SuiteRule {
    #[error("unknown format version {found}")]
    Version { found: i64 },
    #[error("{found} is not {wanted}")]
    Outside { found: String, wanted: &'static str },
    #[error("is empty")]
    Empty,
    #[error("unknown category")]
    Category { near: Option<&'static str> },
    #[error("the weights of all categories add up to 0")]
    NoWeight,
    #[error("both models are `{base}`, without an adapter")]
    NoAdapter { base: String },
    #[error("kind `api` needs an endpoint")]
    NoEndpoint,
    #[error("`{found}` is not the URL of a server")]
    Endpoint { found: String },
    #[error("both models are `{model}` at {endpoint}")]
    SameServer { endpoint: String, model: String },
    #[error("kind `custom` needs an entry point")]
    NoEntryPoint,
    #[error("`{found}` is not an entry point")]
    EntryPoint { found: String },
    #[error("a suite file cannot use canned answers")]
    Dummy,
    #[error("line {line} already has an entry named `{name}`")]
    DuplicateName { name: String, line: u64 },
    #[error(transparent)]
    Kind(UnknownKind),
    #[error("kind `{kind}`: {problem}")]
    Option { kind: String, problem: String },
}

impl Hint for SuiteRule {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Version { .. } => "write 1, or omit the key",
            Self::Outside { wanted, .. } => return Some(format!("write {wanted}")),
            Self::Empty => "write a value, or omit the key",
            Self::Category { near: Some(near) } => return did_you_mean(Some(near)),
            Self::Category { near: None } => "use adherence, attribution, calibration, ablation or baseline",
            Self::NoWeight => "give at least one category a weight above 0",
            Self::NoAdapter { .. } => "name the folder of an adapter, or another model in `models.ft.base`",
            Self::NoEndpoint => "add the URL of the server: endpoint: http://127.0.0.1:8000",
            Self::Endpoint { .. } => "write a URL with its scheme: http://127.0.0.1:8000",
            Self::SameServer { .. } => {
                "name another model in `models.base.base`, or another server in `models.base.endpoint`"
            }
            Self::NoEntryPoint => {
                "add `entry_point`: package.module:Class, or a program that starts with ./ or /"
            }
            Self::EntryPoint { .. } => "write package.module:Class, or a program that starts with ./ or /",
            Self::Dummy => "use hf, mlx, api or custom",
            Self::DuplicateName { .. } => "rename one of them",
            Self::Kind(error) => return error.hint(),
            Self::Option { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

impl DocumentRule for SuiteRule {
    const DOCUMENT: &'static str = "the suite";
    const FILE: &'static str = "a suite";
    const OVERRIDE: &'static str = "defaults.seed=3";
}

/// What is unusual about a suite but does not stop it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SuiteWarning {
    /// dlm-sway permits this.
    #[error("line {line}: line {earlier} already has an entry named `{name}`")]
    DuplicateName { name: String, line: u64, earlier: u64 },
    /// As in dlm-sway, under the reference statistics.
    #[error("`models.base` ({base}) is ignored: `models.ft` names the base {used}")]
    BaseIgnored { base: String, used: String },
    #[error("`models.base` ({base}) and `models.ft` ({tuned}) are loaded as two models")]
    TwoModels { base: String, tuned: String },
    #[error("`models.base.adapter` ({adapter}) is ignored")]
    BaseAdapterIgnored { adapter: String },
    #[error("`{key}` has no effect: {why}")]
    NoEffect { key: String, why: String },
}

/// The line of an origin, 0 without one.
pub(super) fn line(origin: &Origin) -> u64 {
    origin.line().unwrap_or(0)
}
