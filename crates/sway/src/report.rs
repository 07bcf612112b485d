//! Reports of a run.
//!
//! A [`Report`] is data. It is written and read as JSON, with the keys of
//! dlm-sway and additional ones, and rendered as Markdown, JUnit XML or a
//! self-contained HTML page. [`compare`] compares several reports, [`golden`]
//! diffs two, and [`trace`] summarizes the questions of a run.

pub mod compare;
pub mod format;
pub mod golden;
mod html;
mod json;
mod junit;
mod markdown;
mod summary;
pub mod trace;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;
use weightloom_errors::Hint;

use crate::backend::Description;
use crate::record::Record;
use crate::score::{Band, Score};
use crate::statistics::Statistics;
use crate::verdict::Verdict;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Version of the schema: 1.
    pub schema_version: u64,
    /// Version of the program that wrote it.
    pub sway_version: String,
    /// File of the suite.
    pub spec_path: String,
    /// The base model.
    pub base_model_id: String,
    /// The adapter or fine-tuned model; empty without one.
    pub adapter_id: String,
    /// Start of the run, ISO 8601, UTC.
    pub started_at: String,
    /// End of the run.
    pub finished_at: String,
    /// Duration in seconds.
    pub wall_seconds: f64,
    /// Whether a second run would give the same numbers.
    pub determinism: Option<Determinism>,
    /// Counters of the backend.
    pub backend_stats: Map<String, Value>,
    /// What changed, what was learned, what was lost. Derived from the records,
    /// also when a report is read.
    pub verdict: Verdict,
    /// The score of the suite, a secondary number.
    pub score: Score,
    /// Null distribution of each kind of probe.
    pub null_stats: Map<String, Value>,
    /// One record per entry.
    pub probes: Vec<Record>,
    /// How verdicts were reached; reference for files of dlm-sway, which do not
    /// say.
    #[serde(default = "reference")]
    pub statistics: Statistics,
    /// The backend.
    pub backend: Option<Description>,
    /// Version of the text packs.
    pub packs: Option<String>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// What is unusual about the run.
    pub warnings: Vec<String>,
}

fn reference() -> Statistics {
    Statistics::Reference
}

/// Whether a second run would give the same numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Determinism {
    /// `strict`, `best_effort` or `loose`.
    pub class: String,
    /// Seed of random draws.
    pub seed: i64,
    /// Reasons.
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
            verdict: Verdict::default(),
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

/// Why a text cannot be read as a report.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ReportError {
    #[error("{file}:{line}:{column}: invalid JSON: {message}")]
    Syntax { file: String, line: usize, column: usize, message: String },
    #[error("{file}: not a report: {message}")]
    Shape { file: String, message: String },
    #[error("{file}: unsupported schema version {found}; this program reads 1")]
    Version { file: String, found: u64 },
}

impl Hint for ReportError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Syntax { .. } | Self::Shape { .. } => {
                "use a file written by `weightloom sway run --json FILE`".to_owned()
            }
            Self::Version { .. } => "upgrade weightloom".to_owned(),
        })
    }
}
