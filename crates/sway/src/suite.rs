//! Suite files: which models are compared, and by which probes.
//!
//! [`Suite::read`] parses a `sway.yaml`, or returns every error with its line; a
//! [`SuiteReader`] does so with your own probes and backends.
//! It decides what is compared with what, as a [`Plan`]. The fields of an entry
//! belong to its probe: [`Suite::probes`] checks them and builds the probes.

mod entry;
mod error;
mod file;
mod overrides;
mod plan;
mod read;
mod reader;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::probe::Probes;

pub use entry::SuiteEntry;
pub use error::{SuiteError, SuiteErrors, SuiteProblem, SuiteRule, SuiteWarning};
pub use file::{Defaults, ModelKind, ModelSpec, Precision};
pub use overrides::{SuiteOverrides, TunedSide};
pub use plan::{CustomModel, EntryPoint, LocalModel, Plan, PlannedModel, RegisteredModel, ServedModel};
pub use reader::SuiteReader;

/// A validated suite, with its paths resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// The file, as given.
    pub file: String,
    /// Settings of all probes.
    pub defaults: Defaults,
    /// The base model, as the file says.
    pub base: ModelSpec,
    /// The fine-tuned model, as the file says.
    pub tuned: ModelSpec,
    /// What is compared.
    pub plan: Plan,
    /// The document that the model was fine-tuned on.
    pub source: Option<PathBuf>,
    /// What is unusual but does not stop the suite.
    pub warnings: Vec<SuiteWarning>,
    entries: Vec<SuiteEntry>,
    kinds: Probes,
}

impl Suite {
    /// The entries, in the order of the file.
    pub fn entries(&self) -> &[SuiteEntry] {
        &self.entries
    }

    /// The kinds of probes that the suite was read with.
    pub fn kinds(&self) -> &Probes {
        &self.kinds
    }
}
