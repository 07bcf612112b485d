//! What a run found, for people and for programs.
//!
//! A [`Report`] is data. It is written and read as JSON, whose keys are those of
//! dlm-sway and after them ours, and shown as Markdown, JUnit or one HTML page.
//! [`compare`], [`golden`] and [`trace`] look at several of them, or at what a
//! run did.

pub mod compare;
pub mod format;
pub mod golden;
mod html;
mod json;
mod junit;
mod markdown;
mod meaning;
mod summary;
pub mod trace;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;
use weightloom_errors::Hint;

pub use meaning::{Meaning, meaning};

use crate::backend::Description;
use crate::record::Record;
use crate::score::{Band, Score};
use crate::statistics::Statistics;

/// What a run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The version of the schema, which is 1.
    pub schema_version: u64,
    /// The version of the program that made it.
    pub sway_version: String,
    /// The suite's file.
    pub spec_path: String,
    /// The base model.
    pub base_model_id: String,
    /// The adapter, or the model after; empty if there is none.
    pub adapter_id: String,
    /// When it began, ISO 8601, UTC.
    pub started_at: String,
    /// When it ended.
    pub finished_at: String,
    /// How long it took.
    pub wall_seconds: f64,
    /// How far it would give the same again.
    pub determinism: Option<Determinism>,
    /// What the backend counted.
    pub backend_stats: Map<String, Value>,
    /// One number for all.
    pub score: Score,
    /// What noise does to each kind of probe.
    pub null_stats: Map<String, Value>,
    /// What each probe found.
    pub probes: Vec<Record>,
    /// How verdicts were reached. Files of dlm-sway do not say, and were
    /// reached in its way.
    #[serde(default = "reference")]
    pub statistics: Statistics,
    /// What answered, and what it can do.
    pub backend: Option<Description>,
    /// Which texts were used.
    pub packs: Option<String>,
    /// What a reader should know: limits, decisions.
    pub notes: Vec<String>,
    /// What is odd.
    pub warnings: Vec<String>,
}

fn reference() -> Statistics {
    Statistics::Reference
}

/// How far a run would give the same again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Determinism {
    /// In a word: `strict`, `best_effort`, `loose`.
    pub class: String,
    /// What random draws began with.
    pub seed: i64,
    /// Why.
    pub notes: Vec<String>,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            schema_version: 1,
            sway_version: env!("CARGO_PKG_VERSION").to_owned(),
            spec_path: String::new(),
            base_model_id: String::new(),
            adapter_id: String::new(),
            started_at: String::new(),
            finished_at: String::new(),
            wall_seconds: 0.0,
            determinism: None,
            backend_stats: Map::new(),
            score: Score {
                overall: 0.0,
                band: Band::Noise,
                components: Default::default(),
                weights: Default::default(),
                findings: Vec::new(),
            },
            null_stats: Map::new(),
            probes: Vec::new(),
            statistics: Statistics::Paired,
            backend: None,
            packs: None,
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// Why a text is no report.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ReportError {
    /// It is no JSON.
    #[error("{file}:{line}:{column}: not JSON: {message}")]
    Syntax { file: String, line: usize, column: usize, message: String },
    /// It is JSON of another form.
    #[error("{file}: not a report: {message}")]
    Form { file: String, message: String },
    /// It is of a later version.
    #[error("{file}: has version {found} of the schema, but only 1 is known")]
    Version { file: String, found: u64 },
}

impl Hint for ReportError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Syntax { .. } | Self::Form { .. } => {
                "give a file that `weightloom sway run --json FILE` wrote".to_owned()
            }
            Self::Version { .. } => "use a later version of weightloom".to_owned(),
        })
    }
}
