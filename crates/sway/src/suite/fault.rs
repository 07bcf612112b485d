//! What can be wrong with a suite.

use serde::{Deserialize, Serialize};
use weightloom_document::{DocumentError, DocumentErrors, DocumentRule, Origin, Problem};
use weightloom_errors::Hint;

/// Everything that is wrong with a suite.
pub type SuiteErrors = DocumentErrors<SuiteRule>;
/// One thing that is wrong.
pub type SuiteFault = DocumentError<SuiteRule>;
/// What is wrong with a value.
pub type SuiteProblem = Problem<SuiteRule>;

/// A value that fits its type, but not its purpose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SuiteRule {
    /// Another version of the format.
    #[error("version {found} of the format is not known")]
    Version { found: i64 },
    /// A number outside of what makes sense.
    #[error("{found} is not {wanted}")]
    Outside { found: String, wanted: &'static str },
    /// Nothing where something must be.
    #[error("is empty")]
    Empty,
    /// A weight for something that is no category.
    #[error("there is no such category")]
    Category { near: Option<&'static str> },
    /// Weights that leave nothing to be weighed.
    #[error("all categories together weigh nothing")]
    NoWeight,
    /// A local model without a change.
    #[error("`{base}` stands on both sides, and there is no adapter")]
    NoAdapter { base: String },
    /// A server without an address.
    #[error("kind `api` needs an endpoint")]
    NoEndpoint,
    /// An address that is none.
    #[error("`{found}` is no address of a server")]
    Endpoint { found: String },
    /// One server, asked for the same model on both sides.
    #[error("both sides ask {endpoint} for `{model}`, so nothing is compared")]
    SameServer { endpoint: String, model: String },
    /// A backend of the user's own without its name.
    #[error("kind `custom` needs an entry point")]
    NoEntryPoint,
    /// A name that is none.
    #[error("`{found}` is no entry point")]
    EntryPoint { found: String },
    /// Made-up answers.
    #[error("made-up answers cannot be asked for in a file")]
    Dummy,
    /// Two entries of one name.
    #[error("another entry is called `{name}`, in line {line}")]
    SameName { name: String, line: u64 },
    /// A kind of probe that nobody knows.
    #[error("there is no probe `{kind}`")]
    UnknownProbe { kind: String, near: Option<String>, known: Vec<String> },
}

impl Hint for SuiteRule {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Version { .. } => "write 1, or leave it out".to_owned(),
            Self::Outside { wanted, .. } => format!("write {wanted}"),
            Self::Empty => "write something, or leave the key out".to_owned(),
            Self::Category { near: Some(near) } => format!("write `{near}`"),
            Self::Category { near: None } => {
                "categories: adherence, attribution, calibration, ablation, baseline".to_owned()
            }
            Self::NoWeight => "give at least one category a weight above 0".to_owned(),
            Self::NoAdapter { .. } => {
                "name the folder of the adapter, or another model in `models.ft.base`".to_owned()
            }
            Self::NoEndpoint => "add the root of the server: endpoint: http://127.0.0.1:8000".to_owned(),
            Self::Endpoint { .. } => "write it with its protocol: http://127.0.0.1:8000".to_owned(),
            Self::SameServer { .. } => {
                "name another model in `models.base.base`, or another server in `models.base.endpoint`"
                    .to_owned()
            }
            Self::NoEntryPoint => {
                "add `entry_point`: package.module:Class, or a program that starts with ./ or /".to_owned()
            }
            Self::EntryPoint { .. } => {
                "write package.module:Class, or a program that starts with ./ or /".to_owned()
            }
            Self::Dummy => "write one of hf, mlx, api, custom".to_owned(),
            Self::SameName { .. } => "give one of them another name".to_owned(),
            Self::UnknownProbe { near: Some(near), .. } => format!("write `{near}`"),
            Self::UnknownProbe { known, .. } => format!("probes: {}", known.join(", ")),
        })
    }
}

impl DocumentRule for SuiteRule {
    const DOCUMENT: &'static str = "the suite";
    const FILE: &'static str = "a suite";
    const OVERRIDE: &'static str = "defaults.seed=3";
}

/// What is odd in a suite, but no fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SuiteWarning {
    /// Two entries of one name, which dlm-sway allows.
    #[error("line {line}: the name `{name}` stands also in line {earlier}")]
    SameName { name: String, line: u64, earlier: u64 },
    /// The base of the suite is not looked at, as dlm-sway does.
    #[error("`models.base` ({base}) is not looked at: the base is {used}, which `models.ft` names")]
    BaseIgnored { base: String, used: String },
    /// Two models are compared instead of one model with and without a change.
    #[error("`models.base` ({base}) and `models.ft` ({tuned}) are two models, each loaded for itself")]
    TwoModels { base: String, tuned: String },
    /// The adapter of the base is not used, as dlm-sway does.
    #[error("`models.base.adapter` ({adapter}) is not used")]
    BaseAdapterIgnored { adapter: String },
    /// A key that changes nothing here.
    #[error("`{key}` changes nothing: {why}")]
    NoEffect { key: String, why: String },
}

/// The line of an origin, 0 without one.
pub(super) fn line(origin: &Origin) -> u64 {
    origin.line().unwrap_or(0)
}
