//! One entry of a suite file.

use serde_json::{Map, Value};
use weightloom_document::{Coercion, Mark, Node, Origin, Sources, Validator};

use super::Suite;
use super::error::{SuiteError, SuiteErrors, SuiteProblem, SuiteRule};
use crate::chat::ChatMode;
use crate::extensions::section_of;
use crate::probe::{FieldProblem, Kind, Probes};
use crate::runner;

/// Adds the errors of entries, so that a user sees every error at once.
pub(super) fn with_entries(
    mut errors: Vec<SuiteError>,
    entries: &[SuiteEntry],
    kinds: &Probes,
) -> SuiteErrors {
    errors.extend(entries.iter().filter_map(|entry| entry.probe(kinds).err()).flatten());
    SuiteErrors::sorted(errors)
}

/// One entry of a suite file.
#[derive(Clone, Debug, PartialEq)]
pub struct SuiteEntry {
    /// The name.
    pub name: String,
    /// The kind of the probe.
    pub kind: String,
    /// Whether the entry runs.
    pub enabled: bool,
    /// How much the entry counts within its category.
    pub weight: f64,
    /// When its prompts are rendered with the model's chat template, unless as
    /// `defaults.chat` says.
    pub chat: Option<ChatMode>,
    /// The fields of the probe, as written.
    pub fields: Map<String, Value>,
    /// Where the entry begins.
    pub origin: Origin,
    pub(super) file: String,
    /// The index in the list.
    pub(super) index: usize,
    pub(super) mark: Mark,
    pub(super) kind_mark: Mark,
    pub(super) node: Node,
}

impl SuiteEntry {
    /// Builds the probe, or returns every error in its fields.
    pub fn probe(&self, kinds: &Probes) -> Result<runner::Entry, Vec<SuiteError>> {
        let kind = kinds.find(&self.kind).map_err(|error| {
            let origin = self.sources().origin(self.kind_mark);
            let problem = SuiteProblem::Rule(SuiteRule::Kind(error));
            vec![SuiteError { origin, path: format!("suite.{}.kind", self.index), problem }]
        })?;
        let probe = kind.build(&self.check(kind)?).map_err(|errors| {
            let error = |one: FieldProblem| {
                let field = (!one.field.is_empty()).then_some(one.field.as_str());
                self.error(field, SuiteProblem::Deserialize { message: one.problem })
            };
            errors.problems.into_iter().map(error).collect::<Vec<_>>()
        })?;
        let (enabled, weight, chat) = (self.enabled, self.weight, self.chat);
        Ok(runner::Entry { enabled, weight, chat, ..runner::Entry::of_probe(&self.name, probe) })
    }

    /// Checks the fields against the schema of the kind.
    fn check(&self, kind: &Kind) -> Result<Map<String, Value>, Vec<SuiteError>> {
        let schema = section_of(&kind.schema())
            .map_err(|error| vec![self.error(None, SuiteProblem::Deserialize { message: error.0 })])?;
        let mut validator = Validator::new(self.sources(), &schema, Coercion::Lenient);
        let path = format!("suite.{}", self.index);
        match validator.check_section(&schema, &self.node, self.mark, &path) {
            Some(Value::Object(fields)) if validator.errors.is_empty() => Ok(fields),
            Some(_) if validator.errors.is_empty() => Ok(Map::new()),
            _ => Err(validator.errors),
        }
    }

    /// An error of the entry, at one of its fields if one is named.
    fn error(&self, field: Option<&str>, problem: SuiteProblem) -> SuiteError {
        let mark = field.map_or(self.mark, |field| self.node.mark_of(field));
        let path = match field {
            Some(field) => format!("suite.{}.{field}", self.index),
            None => format!("suite.{}", self.index),
        };
        SuiteError { origin: self.sources().origin(mark), path, problem }
    }

    fn sources(&self) -> Sources<'_> {
        Sources { file: &self.file, overrides: &[] }
    }
}

impl Suite {
    /// Builds every probe, in order, or returns every error.
    pub fn probes(&self) -> Result<Vec<runner::Entry>, SuiteErrors> {
        let (mut probes, mut errors) = (Vec::new(), Vec::new());
        for entry in self.entries() {
            match entry.probe(&self.kinds) {
                Ok(probe) => probes.push(probe),
                Err(found) => errors.extend(found),
            }
        }
        if errors.is_empty() { Ok(probes) } else { Err(SuiteErrors::sorted(errors)) }
    }
}
