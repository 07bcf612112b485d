//! Entries of a suite.

use serde_json::{Map, Value};
use thiserror::Error;
use weightloom_errors::{Hint, caught};

use super::ProbeResult;
use super::observer::Observer;
use crate::category::Category;
use crate::chat::ChatMode;
use crate::paired::PairedSettings;
use crate::probe::{
    self, FieldErrors, Finding, Kind, Panicked, Probe, ProbeContext, ProbeError, Probes, Stop, UnknownKind,
};
use crate::prompt::Prompt;
use crate::record::{ProbeVerdict, Record};
use crate::statistics::Statistics;

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
    /// An enabled entry of weight 1 of a built-in kind, with the fields of its
    /// probe.
    pub fn new(name: &str, kind: &str, fields: &Map<String, Value>) -> Result<Self, EntryError> {
        Self::of_kind(name, Probes::standard().find(kind)?, fields)
    }

    /// An enabled entry of weight 1 of a registered kind, with the fields of its
    /// probe.
    pub fn of_kind(name: &str, kind: &Kind, fields: &Map<String, Value>) -> Result<Self, EntryError> {
        let probe = kind.build(fields)?;
        Ok(Self {
            name: name.to_owned(),
            kind: kind.name().to_owned(),
            enabled: true,
            weight: 1.0,
            chat: None,
            probe,
        })
    }

    /// Parses an entry of a built-in kind; `name`, `kind`, `enabled`, `weight` and `chat` are
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

    /// Measures and judges or drafts, as the statistics say. A probe that panics or
    /// contradicts itself fails, and the others run on.
    pub(super) fn run(
        &self,
        context: &ProbeContext<'_>,
        paired: &PairedSettings,
    ) -> Result<ProbeResult, Stop> {
        let kind = || self.kind.clone();
        let failed = |panic| Stop::Failed(ProbeError::Panicked { kind: kind(), panic });
        let inconsistent = |problem| Stop::Failed(ProbeError::Inconsistent { kind: kind(), problem });
        match context.statistics {
            Statistics::Reference => {
                let found = caught(|| self.probe.judge(context)).map_err(failed)??;
                match found.inconsistency() {
                    Some(problem) => Err(inconsistent(problem)),
                    None => Ok(ProbeResult::Judged(found.without_non_finite())),
                }
            }
            Statistics::Paired => {
                let draft = caught(|| self.probe.draft(context, paired)).map_err(failed)??;
                match draft.finding.inconsistency().or_else(|| draft.inconsistency(paired)) {
                    Some(problem) => Err(inconsistent(problem)),
                    None => Ok(ProbeResult::Drafted(draft)),
                }
            }
        }
    }

    /// The record of a finding. That of a probe that is not built in keeps what
    /// the probe is about and what it shows, for programs without the probe.
    pub(super) fn record(
        &self,
        finding: Finding,
        seconds: f64,
        statistics: Statistics,
        observer: &mut dyn Observer,
    ) -> Record {
        let mut record = finding.into_record(&self.name, &self.kind, seconds);
        if probe::about(&self.kind).is_some() {
            return record;
        }
        record.about = Some(self.probe.about().into());
        if matches!(record.verdict, ProbeVerdict::Error | ProbeVerdict::Skip) {
            return record;
        }
        let mut note = |what: &str, panic: Panicked| {
            observer.note(&format!("`{}` has no {what} of its kind `{}`: {panic}", self.name, self.kind));
        };
        let chart = caught(|| self.probe.chart(&record.evidence, statistics));
        let table = caught(|| self.probe.table(&record.evidence));
        record.chart = chart.map_err(|panic| note("chart", panic)).ok().flatten();
        record.table = table.map_err(|panic| note("table", panic)).ok().flatten();
        record
    }

    /// Prompts over which the change is attributed to layers; none if the probe
    /// panics.
    pub(crate) fn attribution_prompts(&self) -> &[Prompt] {
        caught(|| self.probe.attribution_prompts()).unwrap_or_default()
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
