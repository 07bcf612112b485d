//! One probe of a suite.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weightloom_document::schema::UnsupportedSchema;
use weightloom_document::{Coercion, Mark, Node, Origin, Section, Sources, Validator};
use weightloom_errors::nearest;

use super::fault::{SuiteErrors, SuiteFault, SuiteProblem, SuiteRule};
use super::{Suite, SuiteEntry as Entry};
use crate::probe::{FieldFault, kinds};
use crate::runner::{self, EntryError};

/// Faults, and those of entries with them: who mends a file sees all at once.
pub(super) fn with_entries(mut faults: Vec<SuiteFault>, entries: &[SuiteEntry]) -> SuiteErrors {
    faults.extend(entries.iter().filter_map(|entry| entry.probe().err()).flatten());
    SuiteErrors::sorted(faults)
}

/// One probe of a suite.
#[derive(Clone, Debug, PartialEq)]
pub struct SuiteEntry {
    /// What it is called.
    pub name: String,
    /// The kind of the probe.
    pub kind: String,
    /// Whether it is run.
    pub enabled: bool,
    /// How much it counts among others of its category.
    pub weight: f64,
    /// All else that it says, as it is written.
    pub fields: Map<String, Value>,
    /// Where it begins.
    pub place: Origin,
    /// The file that it stands in.
    pub(super) file: String,
    /// Where it stands in the list.
    pub(super) index: usize,
    pub(super) mark: Mark,
    pub(super) kind_mark: Mark,
    pub(super) node: Node,
}

impl SuiteEntry {
    /// What the entry says to its probe, checked against the probe's type.
    ///
    /// A type that is too odd for an outline is checked by itself alone.
    pub fn read<T: DeserializeOwned + JsonSchema>(&self) -> Result<T, SuiteErrors> {
        let schema = schemars::schema_for!(T).to_value();
        let value = match self.conform(&schema) {
            Ok(value) => value?,
            Err(UnsupportedSchema(_)) => Value::Object(self.fields.clone()),
        };
        serde_json::from_value(value)
            .map_err(|error| self.alone(SuiteProblem::Deserialize { message: error.to_string() }))
    }

    /// What is wrong with what the entry says, by the JSON schema of the
    /// probe's type; otherwise its fields as that type takes them.
    pub fn check(&self, schema: &Value) -> Result<Map<String, Value>, SuiteErrors> {
        match self.conform(schema) {
            Err(UnsupportedSchema(message)) => Err(self.alone(SuiteProblem::Deserialize { message })),
            Ok(value) => match value? {
                Value::Object(map) => Ok(map),
                _ => Ok(Map::new()),
            },
        }
    }

    /// A fault of the entry, at one of its fields if one is named.
    pub fn fault(&self, field: Option<&str>, problem: SuiteProblem) -> SuiteFault {
        let sources = Sources { file: &self.file, overrides: &[] };
        let mark = field.map_or(self.mark, |field| self.node.mark_of(field));
        let path = match field {
            Some(field) => format!("suite.{}.{field}", self.index),
            None => format!("suite.{}", self.index),
        };
        SuiteFault { origin: sources.origin(mark), path, problem }
    }

    fn conform(&self, schema: &Value) -> Result<Result<Value, SuiteErrors>, UnsupportedSchema> {
        let outline = Section::from_json_schema(schema)?;
        let sources = Sources { file: &self.file, overrides: &[] };
        let mut check = Validator::new(sources, &outline, Coercion::Lenient);
        let value = check.check_section(&outline, &self.node, self.mark, &format!("suite.{}", self.index));
        Ok(match value {
            Some(value) if check.errors.is_empty() => Ok(value),
            _ => Err(SuiteErrors::sorted(check.errors)),
        })
    }

    /// The probe, or all that is wrong with what the entry says to it.
    pub fn probe(&self) -> Result<runner::Entry, Vec<SuiteFault>> {
        let known: Vec<(String, Value)> =
            kinds().iter().map(|kind| (kind.kind.to_owned(), kind.schema())).collect();
        let Some((_, schema)) = known.iter().find(|(kind, _)| *kind == self.kind) else {
            return Err(vec![self.unknown(&known)]);
        };
        let fields = self.check(schema).map_err(|errors| errors.errors)?;
        match runner::Entry::new(&self.name, &self.kind, &fields) {
            Ok(made) => Ok(runner::Entry { enabled: self.enabled, weight: self.weight, ..made }),
            Err(EntryError::Fields(found)) => {
                let fault = |one: FieldFault| {
                    let field = (!one.field.is_empty()).then_some(one.field.as_str());
                    self.fault(field, SuiteProblem::Deserialize { message: one.problem })
                };
                Err(found.faults.into_iter().map(fault).collect())
            }
            Err(error) => {
                Err(vec![self.fault(None, SuiteProblem::Deserialize { message: error.to_string() })])
            }
        }
    }

    fn alone(&self, problem: SuiteProblem) -> SuiteErrors {
        SuiteErrors { errors: vec![self.fault(None, problem)] }
    }

    /// That nobody knows its kind.
    fn unknown(&self, kinds: &[(String, Value)]) -> SuiteFault {
        let known: Vec<String> = kinds.iter().map(|(kind, _)| kind.clone()).collect();
        let near = nearest(&self.kind, known.iter().map(String::as_str)).map(str::to_owned);
        let rule = SuiteRule::UnknownProbe { kind: self.kind.clone(), near, known };
        let origin = Sources { file: &self.file, overrides: &[] }.origin(self.kind_mark);
        SuiteFault { origin, path: format!("suite.{}.kind", self.index), problem: SuiteProblem::Rule(rule) }
    }
}

impl Suite {
    /// The probes, in order, or all that is wrong with any of them.
    pub fn probes(&self) -> Result<Vec<runner::Entry>, SuiteErrors> {
        let (mut made, mut faults) = (Vec::new(), Vec::new());
        for entry in self.entries() {
            match entry.probe() {
                Ok(probe) => made.push(probe),
                Err(found) => faults.extend(found),
            }
        }
        if faults.is_empty() { Ok(made) } else { Err(SuiteErrors::sorted(faults)) }
    }

    /// What is wrong with all entries, by the kinds there are and the JSON
    /// schemas of their types. Otherwise the fields of each entry, in order.
    pub fn check_entries(&self, kinds: &[(String, Value)]) -> Result<Vec<Map<String, Value>>, SuiteErrors> {
        let mut faults = Vec::new();
        let mut fields = Vec::new();
        for entry in self.entries() {
            match kinds.iter().find(|(kind, _)| *kind == entry.kind) {
                None => faults.push(entry.unknown(kinds)),
                Some((_, schema)) => match Entry::check(entry, schema) {
                    Ok(found) => fields.push(found),
                    Err(errors) => faults.extend(errors.errors),
                },
            }
        }
        if faults.is_empty() { Ok(fields) } else { Err(SuiteErrors::sorted(faults)) }
    }
}
