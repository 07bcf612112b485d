//! The kinds of probes: their names, what they are about, and how an entry's
//! fields become a probe.

use std::fmt;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;
use weightloom_errors::{Hint, nearest};

use super::{
    AdapterAblation, AdapterRevert, CalibrationDrift, ClusterKl, DeltaKl, ExternalPerplexity, Leakage,
    NullAdapter, ParaphraseInvariance, PreferenceFlip, Probe, PromptCollapse, SectionInternalization,
    Setting, StyleFingerprint,
};
use crate::category::Category;

/// What each kind's fields tell of themselves.
pub(crate) trait Fields: Probe + DeserializeOwned + JsonSchema + Default + 'static {
    /// As suite files write it.
    const KIND: &'static str;
    /// What it is about.
    const CATEGORY: Category;
    /// What it asks, in a line.
    const DESCRIPTION: &'static str;

    /// What is wrong with the fields, beyond their types.
    fn faults(&self) -> Vec<FieldFault> {
        Vec::new()
    }

    /// The probe to run on noise; none if noise says nothing about this kind.
    fn calibration(_setting: &Setting<'_>) -> Option<Self> {
        None
    }
}

/// How fields become a probe.
type Build = fn(&Map<String, Value>) -> Result<Box<dyn Probe>, FieldFaults>;

/// A kind of probe.
#[derive(Clone, Copy)]
pub struct Kind {
    /// As suite files write it.
    pub kind: &'static str,
    /// What it is about.
    pub category: Category,
    /// What it asks, in a line.
    pub description: &'static str,
    schema: fn() -> Value,
    build: Build,
    calibration: fn(&Setting<'_>) -> Option<Box<dyn Probe>>,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind").field("kind", &self.kind).field("category", &self.category).finish()
    }
}

impl Kind {
    const fn of<T: Fields>() -> Self {
        Self {
            kind: T::KIND,
            category: T::CATEGORY,
            description: T::DESCRIPTION,
            schema: || schemars::schema_for!(T).to_value(),
            build: |fields| Ok(Box::new(read::<T>(fields)?)),
            calibration: |setting| T::calibration(setting).map(|probe| Box::new(probe) as Box<dyn Probe>),
        }
    }

    /// The JSON schema of its fields: without name, kind, enabled and weight,
    /// which every entry has.
    pub fn schema(&self) -> Value {
        (self.schema)()
    }

    /// A probe with some fields.
    pub fn build(&self, fields: &Map<String, Value>) -> Result<Box<dyn Probe>, FieldFaults> {
        (self.build)(fields)
    }

    /// The probe to run on noise; none if noise says nothing about this kind.
    pub fn calibration(&self, setting: &Setting<'_>) -> Option<Box<dyn Probe>> {
        (self.calibration)(setting)
    }
}

/// All kinds, in the order of documents.
pub fn kinds() -> &'static [Kind] {
    const KINDS: [Kind; 13] = [
        Kind::of::<NullAdapter>(),
        Kind::of::<DeltaKl>(),
        Kind::of::<AdapterRevert>(),
        Kind::of::<PromptCollapse>(),
        Kind::of::<ClusterKl>(),
        Kind::of::<SectionInternalization>(),
        Kind::of::<ParaphraseInvariance>(),
        Kind::of::<PreferenceFlip>(),
        Kind::of::<StyleFingerprint>(),
        Kind::of::<CalibrationDrift>(),
        Kind::of::<Leakage>(),
        Kind::of::<ExternalPerplexity>(),
        Kind::of::<AdapterAblation>(),
    ];
    &KINDS
}

/// The kind of a name.
pub fn find(kind: &str) -> Result<&'static Kind, UnknownKind> {
    kinds().iter().find(|known| known.kind == kind).ok_or_else(|| UnknownKind {
        kind: kind.to_owned(),
        near: nearest(kind, kinds().iter().map(|known| known.kind)).map(str::to_owned),
    })
}

/// Reads the fields of a kind from an entry of a pack, which may say as well
/// what every entry says.
pub(crate) fn from_pack<T: Fields>(entry: &Value) -> Option<T> {
    let mut fields = entry.as_object()?.clone();
    for common in ["name", "kind", "enabled", "weight"] {
        fields.remove(common);
    }
    read(&fields).ok()
}

/// Reads each field by itself, so that all that is wrong is told at once.
fn read<T: Fields>(fields: &Map<String, Value>) -> Result<T, FieldFaults> {
    let mut faults = Vec::new();
    for (field, value) in fields {
        let alone = Map::from_iter([(field.clone(), value.clone())]);
        if let Err(error) = serde_json::from_value::<T>(Value::Object(alone)) {
            faults.push(FieldFault { field: field.clone(), problem: error.to_string() });
        }
    }
    if faults.is_empty() {
        match serde_json::from_value::<T>(Value::Object(fields.clone())) {
            Ok(probe) => {
                faults = probe.faults();
                if faults.is_empty() {
                    return Ok(probe);
                }
            }
            Err(error) => faults.push(FieldFault { field: String::new(), problem: error.to_string() }),
        }
    }
    Err(FieldFaults { kind: T::KIND.to_owned(), faults })
}

/// A kind that nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no probe of the kind `{kind}`")]
#[allow(missing_docs)]
pub struct UnknownKind {
    pub kind: String,
    pub near: Option<String>,
}

impl Hint for UnknownKind {
    fn hint(&self) -> Option<String> {
        Some(match &self.near {
            Some(near) => format!("write `{near}`"),
            None => {
                let known: Vec<&str> = kinds().iter().map(|kind| kind.kind).collect();
                format!("use one of {}", known.join(", "))
            }
        })
    }
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldFault {
    /// The field.
    pub field: String,
    /// What is wrong.
    pub problem: String,
}

impl FieldFault {
    /// A fault for each rule that does not hold.
    pub(crate) fn where_broken<const N: usize>(rules: [(bool, &str, &str); N]) -> Vec<Self> {
        let broken = rules.into_iter().filter(|(holds, ..)| !holds);
        broken
            .map(|(_, field, problem)| Self { field: field.to_owned(), problem: problem.to_owned() })
            .collect()
    }
}

/// All that is wrong with the fields of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind}: {}", list(faults))]
#[allow(missing_docs)]
pub struct FieldFaults {
    pub kind: String,
    pub faults: Vec<FieldFault>,
}

fn list(faults: &[FieldFault]) -> String {
    let lines: Vec<String> =
        faults.iter().map(|fault| format!("`{}`: {}", fault.field, fault.problem)).collect();
    lines.join("; ")
}

impl Hint for FieldFaults {
    fn hint(&self) -> Option<String> {
        let schema = find(&self.kind).ok()?.schema();
        let known: Vec<&str> = schema["properties"].as_object()?.keys().map(String::as_str).collect();
        let misspelt = self.faults.iter().find(|fault| !known.contains(&fault.field.as_str()))?;
        Some(match nearest(&misspelt.field, known.iter().copied()) {
            Some(near) => format!("write `{near}` for `{}`", misspelt.field),
            None => format!("`{}` takes {}", self.kind, known.join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn every_kind_is_built_from_nothing_and_knows_its_category() {
        for kind in kinds() {
            assert!(kind.build(&Map::new()).is_ok(), "{}", kind.kind);
            assert_eq!(kind.category, Category::of_kind(kind.kind), "{}", kind.kind);
            let schema = kind.schema();
            // Suites are checked by what it says.
            assert!(weightloom_document::Section::from_json_schema(&schema).is_ok(), "{}", kind.kind);
            for (field, found) in schema["properties"].as_object().unwrap() {
                assert!(found.to_string().contains("description"), "{} {field}", kind.kind);
            }
        }
    }

    #[test]
    fn near_names_are_told() {
        let error = find("delta_lk").unwrap_err();
        assert_eq!(error.hint().unwrap(), "write `delta_kl`");
        assert!(find("x").unwrap_err().hint().unwrap().contains("leakage"));
        let error = find("delta_kl").unwrap().build(&fields(json!({"promts": ["a"]}))).unwrap_err();
        assert_eq!(error.hint().unwrap(), "write `prompts` for `promts`");
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let kind = find("null_adapter").unwrap();
        let error = kind.build(&fields(json!({"runs": "many", "cache": 3, "nonsense": 1}))).unwrap_err();
        assert_eq!(error.faults.len(), 3);
        let error = kind.build(&fields(json!({"runs": 11}))).unwrap_err();
        assert_eq!(error.faults[0].field, "runs");
        for (kind, wrong) in [
            ("prompt_collapse", json!({"context_lengths": [1]})),
            ("cluster_kl", json!({"num_clusters": 1})),
            ("cluster_kl", json!({"min_prompts": 3})),
            ("external_perplexity", json!({"chunk_chars": 100})),
            ("external_perplexity", json!({"max_chunks": 0})),
            ("external_perplexity", json!({"corpus": "other"})),
            ("calibration_drift", json!({"pack": "other"})),
            ("adapter_ablation", json!({"lambdas": [0.0, 1.0]})),
            ("paraphrase_invariance", json!({"cases": [{"prompt": "p", "gold": "g", "paraphrases": []}]})),
            ("adapter_revert", json!({"cases": [{"prompt": "p", "gold": "g", "paraphrases": []}]})),
            ("delta_kl", json!({"top_k": 0})),
        ] {
            assert_eq!(
                find(kind).unwrap().build(&fields(wrong.clone())).unwrap_err().faults.len(),
                1,
                "{wrong}"
            );
        }
    }
}
