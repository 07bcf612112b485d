//! Kinds of probes, and how the fields of an entry become a probe.

use std::fmt;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;
use weightloom_errors::{Hint, caught, nearest};

use super::{About, Chart, Evidence, EvidenceTable, Finding, Probe, ProbeContext, Stop};
use crate::paired::{Draft, PairedSettings};
use crate::prompt::Prompt;
use crate::statistics::Statistics;

/// A kind of probe. The type holds the fields of an entry in a suite.
///
/// Implement it in your own crate and add it to [`Probes`](super::Probes): suites
/// can then name it. The built-in kinds do the same. The doc comment of a field
/// is its description, its type and [`ProbeKind::problems`] validate it, and
/// [`About::aspect`] says which question of the verdict the kind helps to answer.
///
/// ```
/// use std::path::Path;
///
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
/// use weightloom_sway::backend::dummy::Dummy;
/// use weightloom_sway::paired::{Draft, PairedSettings};
/// use weightloom_sway::probe::{
///     About, Evidence, FieldProblem, Finding, ProbeContext, ProbeKind, Probes, Stop, look_up_all,
/// };
/// use weightloom_sway::suite::SuiteReader;
/// use weightloom_sway::{Aspect, Category, Extensions, JudgeOptions, PreparedSuite, ProbeVerdict, judge};
///
/// /// Whether the fine-tuned model finds texts more likely than the base.
/// #[derive(Debug, Default, Deserialize, JsonSchema)]
/// #[serde(default, deny_unknown_fields)]
/// struct Surprise {
///     /// The texts.
///     texts: Vec<String>,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct SurpriseEvidence {
///     per_text: Vec<f64>,
/// }
///
/// impl ProbeKind for Surprise {
///     const ABOUT: About = About {
///         kind: "surprise",
///         category: Category::Adherence,
///         aspect: Aspect::Learning,
///         title: "Surprise",
///         summary: "whether texts became more likely",
///         question: "Does the fine-tuned model expect these texts?",
///         measure: "Mean gain in log-likelihood per text.",
///         axis: "gain (nats)",
///     };
///
///     fn problems(&self) -> Vec<FieldProblem> {
///         FieldProblem::of_broken_rules([(!self.texts.is_empty(), "texts", "needs at least one")])
///     }
///
///     fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
///         let gain = |text: &String| -> Result<f64, Stop> {
///             let tuned = context.answers.rolling(&context.tuned, text)?.total;
///             Ok(tuned - context.answers.rolling(&context.base, text)?.total)
///         };
///         let per_text = look_up_all(self.texts.iter().map(gain))?;
///         let raw = per_text.iter().sum::<f64>() / per_text.len() as f64;
///         let verdict = if raw > 0.0 { ProbeVerdict::Pass } else { ProbeVerdict::Fail };
///         Ok(Finding {
///             raw: Some(raw),
///             evidence: Evidence::of(&SurpriseEvidence { per_text }),
///             ..Finding::without_number(verdict, format!("texts gained {raw:.2} nats"))
///         })
///     }
///
///     fn draft(&self, context: &ProbeContext<'_>, _: &PairedSettings) -> Result<Draft, Stop> {
///         self.judge(context).map(Draft::settled)
///     }
/// }
///
/// let extensions = Extensions { probes: Probes::standard().with::<Surprise>()?, ..Extensions::standard() };
/// let text = "
/// models:
///   base: {base: tiny}
///   ft: {base: tiny, adapter: out}
/// suite:
///   - {name: own, kind: surprise, texts: [Once upon a time]}
/// ";
/// let suite = SuiteReader::new(&extensions, &|_| None).read(text, Path::new("sway.yaml"))?;
/// let prepared = PreparedSuite::new(suite, None)?;
/// let report = judge(&prepared, &mut Dummy::default(), &JudgeOptions::default(), &mut ())?;
/// let record = &report.probes[0];
/// assert_eq!((record.verdict, record.raw), (ProbeVerdict::Pass, Some(1.5)));
/// assert_eq!(record.evidence.read::<SurpriseEvidence>().unwrap().per_text, [1.5]);
/// assert_eq!(record.about().title, "Surprise");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ProbeKind: fmt::Debug + Send + Sync + DeserializeOwned + JsonSchema + Default + 'static {
    /// What the kind is about.
    const ABOUT: About;

    /// Fields whose values make no probe, beyond their types and ranges.
    fn problems(&self) -> Vec<FieldProblem> {
        Vec::new()
    }

    /// The probe that calibrates this kind on noise; none if noise says nothing
    /// about it.
    fn on_noise(_context: &ProbeContext<'_>) -> Option<Self> {
        None
    }

    /// Measures and reaches a verdict by the rules of dlm-sway.
    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop>;

    /// Measures and drafts a claim, which is judged together with the claims of
    /// all other probes.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop>;

    /// A chart of the evidence.
    fn chart(_evidence: &Evidence, _statistics: Statistics) -> Option<Chart> {
        None
    }

    /// A table of the evidence.
    fn table(_evidence: &Evidence) -> Option<EvidenceTable> {
        None
    }

    /// Prompts over which the measured change is attributed to layers.
    fn attribution_prompts(&self) -> &[Prompt] {
        &[]
    }
}

/// Builds a probe from the fields of its entry.
type Build = fn(&Map<String, Value>) -> Result<Box<dyn Probe>, FieldErrors>;

/// A [`ProbeKind`] as a value.
#[derive(Clone, Copy)]
pub struct Kind {
    /// What the kind is about.
    pub about: About,
    schema: fn() -> Value,
    build: Build,
    on_noise: fn(&ProbeContext<'_>) -> Option<Box<dyn Probe>>,
    chart: fn(&Evidence, Statistics) -> Option<Chart>,
    table: fn(&Evidence) -> Option<EvidenceTable>,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind").field("about", &self.about).finish_non_exhaustive()
    }
}

impl Kind {
    /// The value of a type.
    pub const fn of<T: ProbeKind>() -> Self {
        Self {
            about: T::ABOUT,
            schema: || schemars::schema_for!(T).to_value(),
            build: |fields| Ok(Box::new(read::<T>(fields)?)),
            on_noise: |context| T::on_noise(context).map(|probe| Box::new(probe) as Box<dyn Probe>),
            chart: T::chart,
            table: T::table,
        }
    }

    /// The name of the kind in suite files.
    pub fn name(&self) -> &'static str {
        self.about.kind
    }

    /// The JSON schema of its fields, without `name`, `kind`, `enabled` and
    /// `weight`, which every entry has.
    pub fn schema(&self) -> Value {
        (self.schema)()
    }

    /// Builds a probe from the fields of an entry. A kind that panics over its
    /// fields is an error too.
    pub fn build(&self, fields: &Map<String, Value>) -> Result<Box<dyn Probe>, FieldErrors> {
        caught(|| (self.build)(fields)).unwrap_or_else(|panic| {
            let problem = FieldProblem { field: String::new(), problem: panic.to_string() };
            Err(FieldErrors { kind: self.name().to_owned(), problems: vec![problem], fields: Vec::new() })
        })
    }

    /// The probe that calibrates this kind on noise.
    pub fn on_noise(&self, context: &ProbeContext<'_>) -> Option<Box<dyn Probe>> {
        (self.on_noise)(context)
    }

    /// A chart of the evidence.
    pub fn chart(&self, evidence: &Evidence, statistics: Statistics) -> Option<Chart> {
        (self.chart)(evidence, statistics)
    }

    /// A table of the evidence.
    pub fn table(&self, evidence: &Evidence) -> Option<EvidenceTable> {
        (self.table)(evidence)
    }
}

/// Reads the fields of a kind from an entry of a text pack, ignoring the fields
/// that every entry has.
pub(crate) fn from_pack<T: ProbeKind>(entry: &Value) -> Option<T> {
    let mut fields = entry.as_object()?.clone();
    for common in ["name", "kind", "enabled", "weight"] {
        fields.remove(common);
    }
    read(&fields).ok()
}

/// Reads the fields of a kind and checks them. Reports every problem at once.
fn read<T: ProbeKind>(fields: &Map<String, Value>) -> Result<T, FieldErrors> {
    let problems = match serde_json::from_value::<T>(Value::Object(fields.clone())) {
        Ok(probe) => {
            let mut problems = out_of_range(fields, &schemars::schema_for!(T).to_value());
            problems.extend(probe.problems());
            if problems.is_empty() {
                return Ok(probe);
            }
            problems
        }
        Err(error) => {
            // Serde stops at the first problem, so read each field by itself.
            let alone = |field: &String, value: &Value| {
                serde_json::from_value::<T>(Value::Object(Map::from_iter([(field.clone(), value.clone())])))
            };
            let mut problems: Vec<FieldProblem> = fields
                .iter()
                .filter_map(|(field, value)| Some((field, alone(field, value).err()?)))
                .map(|(field, error)| FieldProblem { field: field.clone(), problem: error.to_string() })
                .collect();
            if problems.is_empty() {
                problems.push(FieldProblem { field: String::new(), problem: error.to_string() });
            }
            problems
        }
    };
    let schema = schemars::schema_for!(T).to_value();
    let fields = schema["properties"].as_object().map(|fields| fields.keys().cloned().collect());
    Err(FieldErrors { kind: T::ABOUT.kind.to_owned(), problems, fields: fields.unwrap_or_default() })
}

/// Numbers outside the range that the schema gives.
fn out_of_range(fields: &Map<String, Value>, schema: &Value) -> Vec<FieldProblem> {
    let bound = |field: &str, key: &str| schema["properties"][field][key].as_f64();
    let problem = |(field, value): (&String, &Value)| {
        let (number, least, most) = (value.as_f64()?, bound(field, "minimum"), bound(field, "maximum"));
        let inside = least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most);
        let problem = match (least, most) {
            (Some(least), Some(most)) => format!("must be from {least} to {most}"),
            (Some(least), None) => format!("must be at least {least}"),
            (None, most) => format!("must be at most {}", most.unwrap_or(f64::MAX)),
        };
        (!inside).then(|| FieldProblem { field: field.clone(), problem })
    };
    fields.iter().filter_map(problem).collect()
}

/// A field whose value makes no probe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FieldProblem {
    pub field: String,
    pub problem: String,
}

impl FieldProblem {
    /// A problem for each rule that is broken.
    pub fn of_broken_rules<const N: usize>(rules: [(bool, &str, &str); N]) -> Vec<Self> {
        let broken = rules.into_iter().filter(|(holds, ..)| !holds);
        broken
            .map(|(_, field, problem)| Self { field: field.to_owned(), problem: problem.to_owned() })
            .collect()
    }
}

/// Every problem with the fields of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid fields of `{kind}`: {}", list(problems))]
#[allow(missing_docs)]
pub struct FieldErrors {
    pub kind: String,
    pub problems: Vec<FieldProblem>,
    /// The names of the kind's fields.
    pub fields: Vec<String>,
}

fn list(problems: &[FieldProblem]) -> String {
    let lines: Vec<String> = problems.iter().map(|one| format!("`{}`: {}", one.field, one.problem)).collect();
    lines.join("; ")
}

impl Hint for FieldErrors {
    fn hint(&self) -> Option<String> {
        let is_misspelt = |one: &&FieldProblem| !one.field.is_empty() && !self.fields.contains(&one.field);
        let misspelt = self.problems.iter().find(is_misspelt)?;
        Some(match nearest(&misspelt.field, self.fields.iter().map(String::as_str)) {
            Some(near) => format!("write `{near}` instead of `{}`", misspelt.field),
            None if self.fields.is_empty() => format!("`{}` takes no fields", self.kind),
            None => format!("`{}` takes {}", self.kind, self.fields.join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Probes, kinds};
    use super::*;
    use serde_json::json;

    fn find(kind: &str) -> Kind {
        *Probes::standard().find(kind).unwrap()
    }

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn every_kind_has_defaults_and_describes_itself() {
        for kind in kinds() {
            assert!(kind.build(&Map::new()).is_ok(), "{}", kind.name());
            let About { title, summary, question, measure, axis, .. } = kind.about;
            for text in [title, summary, question, measure, axis] {
                assert!(!text.is_empty(), "{}", kind.name());
            }
            let alike = kinds().iter().filter(|other| other.about.title == title).count();
            assert_eq!((alike, find(kind.name()).about), (1, kind.about));
            let schema = kind.schema();
            // Suites are checked against the outline of the schema.
            assert!(weightloom_document::Section::from_json_schema(&schema).is_ok(), "{}", kind.name());
            for (field, found) in schema["properties"].as_object().unwrap() {
                assert!(found.to_string().contains("description"), "{} {field}", kind.name());
            }
        }
    }

    #[test]
    fn near_names_are_suggested() {
        let probes = Probes::standard();
        let error = probes.find("delta_lk").unwrap_err();
        assert_eq!(error.hint().unwrap(), "did you mean `delta_kl`?");
        assert!(probes.find("x").unwrap_err().hint().unwrap().contains("leakage"));
        let error = find("delta_kl").build(&fields(json!({"promts": ["a"]}))).unwrap_err();
        assert_eq!(error.hint().unwrap(), "write `prompts` instead of `promts`");
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let kind = find("null_adapter");
        let error = kind.build(&fields(json!({"runs": "many", "cache": 3, "nonsense": 1}))).unwrap_err();
        assert_eq!(error.problems.len(), 3);
        let error = kind.build(&fields(json!({"runs": 11}))).unwrap_err();
        assert_eq!(error.problems[0].field, "runs");
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
            assert_eq!(find(kind).build(&fields(wrong.clone())).unwrap_err().problems.len(), 1, "{wrong}");
        }
    }
}
