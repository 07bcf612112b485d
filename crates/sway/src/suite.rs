//! `sway.yaml`: what is compared, and by which probes.
//!
//! [`Suite::read`] makes a suite from a text, or says everything that is wrong
//! with it, each with its line. What is compared is decided here, as data: a
//! [`Plan`]. What an entry of the suite says beyond its name and its kind is
//! the probe's business, so it is kept as a tree and checked by
//! [`Suite::check_entries`] or [`SuiteEntry::read`] against the probe's type.

mod entry;
mod fault;
mod file;
mod overrides;
mod plan;
mod read;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use entry::SuiteEntry;
pub use fault::{SuiteErrors, SuiteFault, SuiteProblem, SuiteRule, SuiteWarning};
pub use file::{Defaults, ModelKind, ModelSpec, Precision};
pub use overrides::{SuiteOverrides, TunedSide};
pub use plan::{CustomModel, EntryPoint, LocalModel, Plan, PlannedModel, ServedModel};

/// A suite, checked. Paths in it are resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// The file, as it was given.
    pub file: String,
    /// What holds for all probes.
    pub defaults: Defaults,
    /// The model before, as the file says.
    pub base: ModelSpec,
    /// The model after, as the file says.
    pub tuned: ModelSpec,
    /// What is compared.
    pub plan: Plan,
    /// The document that the model was tuned on.
    pub source: Option<PathBuf>,
    /// What is odd, but no fault.
    pub warnings: Vec<SuiteWarning>,
    entries: Vec<SuiteEntry>,
}

impl Suite {
    /// The probes, in the order of the file.
    pub fn entries(&self) -> &[SuiteEntry] {
        &self.entries
    }
}
