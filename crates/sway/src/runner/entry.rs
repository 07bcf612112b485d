//! Entries of a suite.

use serde_json::{Map, Value};
use thiserror::Error;
use weightloom_errors::Hint;

use crate::category::Category;
use crate::chat::ChatMode;
use crate::probe::{self, FieldErrors, Finding, Probe, UnknownKind};
use crate::record::Record;

/// An entry of a suite with its probe.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Entry {
    pub name: String,
    /// Kind of the probe.
    pub kind: String,
    /// Whether the entry runs.
    pub enabled: bool,
    /// Weight in the score of its category.
    pub weight: f64,
    /// When its prompts are rendered with the model's chat template, unless as
    /// the suite says.
    pub chat: Option<ChatMode>,
    pub probe: Box<dyn Probe>,
}

impl Entry {
    /// An enabled entry of weight 1, with the fields of its probe.
    pub fn new(name: &str, kind: &str, fields: &Map<String, Value>) -> Result<Self, EntryError> {
        let probe = probe::find(kind)?.build(fields)?;
        Ok(Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            enabled: true,
            weight: 1.0,
            chat: None,
            probe,
        })
    }

    /// Parses an entry; `name`, `kind`, `enabled`, `weight` and `chat` are
    /// beside the fields of the probe.
    pub fn from_json(entry: &Map<String, Value>) -> Result<Self, EntryError> {
        let mut fields = entry.clone();
        let text = |value: Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
        let name = text(fields.remove("name")).ok_or(EntryError::Missing { field: "name" })?;
        let kind = text(fields.remove("kind")).ok_or(EntryError::Missing { field: "kind" })?;
        let enabled = fields.remove("enabled").and_then(|value| value.as_bool()).unwrap_or(true);
        let weight = fields.remove("weight").and_then(|value| value.as_f64()).unwrap_or(1.0);
        let chat = fields.remove("chat").and_then(|value| serde_json::from_value(value).ok());
        Ok(Self { enabled, weight, chat, ..Self::new(&name, &kind, &fields)? })
    }

    /// An entry of a probe that is not built in. It runs and has the weight 1.
    pub fn of_probe(name: &str, probe: Box<dyn Probe>) -> Self {
        let kind = probe.about().kind.to_owned();
        Self { name: name.to_owned(), kind, enabled: true, weight: 1.0, chat: None, probe }
    }

    /// The category of its probe.
    pub fn category(&self) -> Category {
        self.probe.about().category
    }

    /// The record of a finding. That of a probe that is not built in keeps what
    /// the probe is about.
    pub(super) fn record(&self, finding: Finding, seconds: f64) -> Record {
        let own = probe::about(&self.kind).is_none().then(|| self.probe.about().into());
        Record { about: own, ..finding.into_record(&self.name, &self.kind, seconds) }
    }

    /// Whether it measures the null distributions of later entries.
    pub fn is_null(&self) -> bool {
        self.kind == "null_adapter" && self.enabled
    }
}

/// Why an entry cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum EntryError {
    #[error("the entry lacks the string `{field}`")]
    Missing { field: &'static str },
    #[error(transparent)]
    Kind(#[from] UnknownKind),
    #[error(transparent)]
    Fields(#[from] FieldErrors),
}

impl Hint for EntryError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { field } => Some(format!("add `{field}: …`")),
            Self::Kind(error) => error.hint(),
            Self::Fields(error) => error.hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn invalid_entries_are_reported() {
        let read = |value: Value| Entry::from_json(value.as_object().unwrap());
        assert_eq!(read(json!({"kind": "leakage"})).unwrap_err(), EntryError::Missing { field: "name" });
        assert_eq!(read(json!({"name": "a", "kind": 3})).unwrap_err(), EntryError::Missing { field: "kind" });
        assert!(matches!(read(json!({"name": "a", "kind": "leak"})), Err(EntryError::Kind(_))));
        assert!(matches!(read(json!({"name": "a", "kind": "leakage", "x": 1})), Err(EntryError::Fields(_))));
        let entry = read(json!({"name": "a", "kind": "leakage", "weight": 2, "enabled": false})).unwrap();
        assert_eq!((entry.weight, entry.enabled), (2.0, false));
        for error in [
            EntryError::Missing { field: "name" },
            read(json!({"name": "a", "kind": "leakag"})).unwrap_err(),
            read(json!({"name": "a", "kind": "leakage", "x": 1})).unwrap_err(),
        ] {
            assert!(error.hint().is_some(), "{error}");
        }
    }
}
