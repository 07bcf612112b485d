//! `tool_use_fidelity`: whether the model still calls tools correctly.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chart::{EvidenceTable, TableColumn};
use super::lookup::{all, both};
use super::tool_call::{InvalidCall, ToolCall};
use super::{
    About, Evidence, FieldProblem, Finding, Generation, Generations, ItemResult, ItemResults, ProbeContext,
    ProbeKind, RawInterval, RawLimit, Stop,
};
use crate::category::Category;
use crate::numbers::{binomial, mean};
use crate::paired::{Claim, Draft, PairedSettings, most_hits, share_below};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;

/// The share of tool calls that the base makes correctly and the fine-tuned
/// model does not.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolUseFidelity {
    /// Questions that a tool answers.
    pub cases: Vec<ToolCase>,
    /// Tools that may be called; by default those of the cases.
    pub allowed_tools: Vec<String>,
    /// Text before every question; `{tool}` is replaced by the tool as JSON.
    /// Empty if the prompts describe their tools.
    pub instructions: String,
    /// Share of lost calls that fails under paired statistics.
    pub assert_lost_lt: f64,
    /// Lowest change of the share of valid calls that passes under the reference
    /// statistics.
    pub assert_validity_delta_gte: f64,
    /// Highest share of the fine-tuned model's valid calls that may name a tool
    /// that is not allowed.
    pub assert_hallucination_lte: f64,
}

impl Default for ToolUseFidelity {
    fn default() -> Self {
        Self {
            cases: Vec::new(),
            allowed_tools: Vec::new(),
            instructions: INSTRUCTIONS.to_owned(),
            assert_lost_lt: 0.2,
            assert_validity_delta_gte: -0.05,
            assert_hallucination_lte: 0.1,
        }
    }
}

const INSTRUCTIONS: &str = "You can call this tool:\n{tool}\nAnswer with one JSON object that has the keys \
                            `name` and `arguments`, and nothing else.";

/// A question that a tool answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCase {
    /// The question.
    pub prompt: Prompt,
    /// The tool: `name`, `description` and `parameters`, a JSON schema; or these
    /// as `function`.
    pub tool_spec: Map<String, Value>,
    /// The tool to call; by default the name of `tool_spec`.
    #[serde(default)]
    pub gold_tool_name: Option<String>,
    /// Longest answer, in tokens.
    #[serde(default = "max_new_tokens")]
    pub max_new_tokens: usize,
}

fn max_new_tokens() -> usize {
    256
}

impl ToolCase {
    /// The object with name and parameters.
    fn function(&self) -> &Map<String, Value> {
        self.tool_spec.get("function").and_then(Value::as_object).unwrap_or(&self.tool_spec)
    }

    fn name(&self) -> Option<&str> {
        self.function().get("name").and_then(Value::as_str)
    }

    fn wanted(&self) -> &str {
        self.gold_tool_name.as_deref().or(self.name()).unwrap_or_default()
    }

    fn problem(&self) -> Option<&'static str> {
        let parameters = self.function().get("parameters");
        if self.name().is_none() {
            Some("its `tool_spec` has no `name`")
        } else if parameters.is_some_and(|schema| !schema.is_object()) {
            Some("the `parameters` of its `tool_spec` are not an object")
        } else {
            (self.max_new_tokens == 0).then_some("its `max_new_tokens` must be at least 1")
        }
    }

    /// Checks an answer.
    fn read(&self, text: &str, allowed: &BTreeSet<&str>) -> CheckedCall {
        let none = Value::Null;
        let parameters = self.function().get("parameters").unwrap_or(&none);
        let found = ToolCall::find(text).and_then(|call| call.check(parameters).map(|()| call));
        match found {
            Ok(call) if allowed.contains(call.name.as_str()) => CheckedCall::Sound(call),
            Ok(call) => CheckedCall::Invented(call),
            Err(reason) => CheckedCall::Invalid(reason),
        }
    }
}

/// An answer to a case.
#[derive(Clone, Debug, PartialEq)]
enum CheckedCall {
    /// A valid call of an allowed tool.
    Sound(ToolCall),
    /// A valid call of another tool.
    Invented(ToolCall),
    Invalid(InvalidCall),
}

impl CheckedCall {
    fn is_sound(&self) -> bool {
        matches!(self, Self::Sound(_))
    }

    fn valid(&self) -> Option<&ToolCall> {
        match self {
            Self::Sound(call) | Self::Invented(call) => Some(call),
            Self::Invalid(_) => None,
        }
    }

    fn in_words(&self, wanted: &str) -> String {
        match self {
            Self::Sound(call) if call.name == wanted => "correct".to_owned(),
            Self::Sound(call) => format!("calls `{}`", call.name),
            Self::Invented(call) => format!("calls `{}`, which does not exist", call.name),
            Self::Invalid(reason) => reason.to_string(),
        }
    }
}

/// Evidence of [`ToolUseFidelity`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ToolEvidence {
    num_cases: usize,
    base_valid_rate: f64,
    ft_valid_rate: f64,
    validity_delta: f64,
    /// Calls that the base makes and the fine-tuned model does not.
    lost_calls: usize,
    /// The share of the fine-tuned model's valid calls of tools that do not exist.
    hallucination_rate: f64,
    /// The share of arguments in which the models differ, over cases that both
    /// answer with a valid call.
    argument_disagreement: Option<f64>,
    per_case: Vec<CaseEvidence>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct CaseEvidence {
    prompt: String,
    tool: String,
    base: String,
    ft: String,
}

/// The answers of both models to all cases.
struct Calls<'a> {
    cases: &'a [ToolCase],
    texts: Vec<(String, String)>,
    base: Vec<CheckedCall>,
    tuned: Vec<CheckedCall>,
}

impl Calls<'_> {
    fn valid(calls: &[CheckedCall]) -> usize {
        calls.iter().filter(|call| call.valid().is_some()).count()
    }

    fn rate(calls: &[CheckedCall]) -> f64 {
        Self::valid(calls) as f64 / calls.len().max(1) as f64
    }

    /// The change of the share of valid calls. Counts are subtracted, so that one
    /// lost call of twenty is 0.05 and not a rounding error more.
    fn validity_delta(&self) -> f64 {
        let (base, tuned) = (Self::valid(&self.base) as f64, Self::valid(&self.tuned) as f64);
        (tuned - base) / self.cases.len().max(1) as f64
    }

    fn lost(&self) -> usize {
        let lost = |(base, tuned): &(&CheckedCall, &CheckedCall)| base.is_sound() && !tuned.is_sound();
        self.base.iter().zip(&self.tuned).filter(lost).count()
    }

    /// Valid calls of the fine-tuned model, and how many name no allowed tool.
    fn invented(&self) -> (usize, usize) {
        let valid = Self::valid(&self.tuned);
        (self.tuned.iter().filter(|call| matches!(call, CheckedCall::Invented(_))).count(), valid)
    }

    fn hallucination(&self) -> f64 {
        let (invented, valid) = self.invented();
        invented as f64 / valid.max(1) as f64
    }

    fn argument_disagreement(&self) -> Option<f64> {
        let shares: Vec<f64> = self
            .base
            .iter()
            .zip(&self.tuned)
            .filter_map(|(base, tuned)| Some(disagreement(base.valid()?, tuned.valid()?)))
            .collect();
        mean(&shares)
    }

    fn evidence(&self) -> Evidence {
        let (base, tuned) = (Self::rate(&self.base), Self::rate(&self.tuned));
        let pairs = || self.cases.iter().zip(self.base.iter().zip(&self.tuned));
        let per_case = pairs().map(|(case, (base, tuned))| CaseEvidence {
            prompt: case.prompt.to_string(),
            tool: case.wanted().to_owned(),
            base: base.in_words(case.wanted()),
            ft: tuned.in_words(case.wanted()),
        });
        let sound = |call: &CheckedCall| f64::from(u8::from(call.is_sound()));
        let items = pairs().map(|(case, (base, tuned))| {
            ItemResult::new(&format!("{} → {}", case.prompt, case.wanted()), sound(base), sound(tuned))
        });
        let generation = |(case, (base, tuned)): (&ToolCase, &(String, String))| Generation {
            prompt: case.prompt.to_string(),
            base: base.clone(),
            tuned: tuned.clone(),
        };
        Evidence::of(&ToolEvidence {
            num_cases: self.cases.len(),
            base_valid_rate: base,
            ft_valid_rate: tuned,
            validity_delta: self.validity_delta(),
            lost_calls: self.lost(),
            hallucination_rate: self.hallucination(),
            argument_disagreement: self.argument_disagreement(),
            per_case: per_case.collect(),
        })
        .with(&ItemResults::higher_is_better("correct calls", items).lost_from(0.5))
        .with(&Generations::of(self.cases.iter().zip(&self.texts).map(generation)))
    }
}

/// The share of arguments in which two calls differ. Lists count as one value.
fn disagreement(one: &ToolCall, other: &ToolCall) -> f64 {
    let mut paths = BTreeSet::new();
    for call in [one, other] {
        leaves(&call.arguments, "", &mut paths);
    }
    let at = |call: &ToolCall, path: &str| {
        Value::Object(call.arguments.clone()).pointer(path).cloned().unwrap_or_default()
    };
    let differ = paths.iter().filter(|path| at(one, path) != at(other, path)).count();
    differ as f64 / paths.len().max(1) as f64
}

/// JSON pointers of all values that are not objects.
fn leaves(object: &Map<String, Value>, path: &str, found: &mut BTreeSet<String>) {
    for (key, value) in object {
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        match value {
            Value::Object(inner) => leaves(inner, &path, found),
            _ => {
                found.insert(path);
            }
        }
    }
}

impl ToolUseFidelity {
    fn allowed(&self) -> BTreeSet<&str> {
        match self.allowed_tools.as_slice() {
            [] => self.cases.iter().flat_map(|case| [case.name(), Some(case.wanted())]).flatten().collect(),
            given => given.iter().map(String::as_str).collect(),
        }
    }

    /// The question of a case, with the tool before it.
    fn asked(&self, context: &ProbeContext<'_>, case: &ToolCase) -> Prompt {
        if self.instructions.is_empty() {
            return context.rendering.apply(&case.prompt);
        }
        let tool = Value::Object(case.tool_spec.clone()).to_string();
        let before = self.instructions.replace("{tool}", &tool);
        let asked = case.prompt.with_question(format!("{before}\n\n{}", case.prompt.question()));
        context.rendering.apply(&asked)
    }

    fn measure(&self, context: &ProbeContext<'_>) -> Result<Calls<'_>, Stop> {
        let allowed = self.allowed();
        let texts = all(self.cases.iter().map(|case| {
            let prompt = self.asked(context, case);
            let answer = |view| context.answers.generation(view, &prompt, case.max_new_tokens);
            both(answer(&context.base), answer(&context.tuned))
                .map(|(base, tuned)| (base.to_owned(), tuned.to_owned()))
        }))?;
        let read = |of: fn(&(String, String)) -> &String| -> Vec<CheckedCall> {
            let checked = self.cases.iter().zip(&texts);
            checked.map(|(case, pair)| case.read(of(pair), &allowed)).collect()
        };
        let (base, tuned) = (read(|pair| &pair.0), read(|pair| &pair.1));
        Ok(Calls { cases: &self.cases, texts, base, tuned })
    }
}

impl ProbeKind for ToolUseFidelity {
    const ABOUT: About = About {
        kind: "tool_use_fidelity",
        category: Category::Attribution,
        aspect: Aspect::Damage,
        title: "Tool calls",
        summary: "whether the model still calls tools correctly",
        question: "Does the fine-tuned model still call tools as the base does?",
        measure: "Share of the questions that only the base answers with a correct call.",
        axis: "share of the calls",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        let mut problems = FieldProblem::of_broken_rules([
            (self.assert_lost_lt > 0.0, "assert_lost_lt", "must be above 0"),
            (
                (0.0..=1.0).contains(&self.assert_hallucination_lte),
                "assert_hallucination_lte",
                "must be from 0 to 1",
            ),
        ]);
        problems.extend(self.cases.iter().enumerate().filter_map(|(at, case)| {
            let problem = format!("case {}: {}", at + 1, case.problem()?);
            Some(FieldProblem { field: "cases".to_owned(), problem })
        }));
        problems
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        if self.cases.is_empty() {
            return Ok(Finding::error("there are no cases"));
        }
        let calls = self.measure(context)?;
        let (base, raw) = (Calls::rate(&calls.base), Calls::rate(&calls.tuned));
        let (delta, hallucination) = (calls.validity_delta(), calls.hallucination());
        let passed =
            delta >= self.assert_validity_delta_gte && hallucination <= self.assert_hallucination_lte;
        Ok(Finding {
            score: Some((1.0 + delta).clamp(0.0, 1.0) * (1.0 - hallucination)),
            raw: Some(raw),
            base_value: Some(base),
            ft_value: Some(raw),
            evidence: calls.evidence(),
            ..Finding::without_number(
                if passed { ProbeVerdict::Pass } else { ProbeVerdict::Fail },
                format!(
                    "{:.0} % of calls are valid, {:.0} % in the base; {:.0} % name a tool that does not exist",
                    100.0 * raw,
                    100.0 * base,
                    100.0 * hallucination
                ),
            )
        })
    }

    /// Claims that few of the base's calls were lost. Calls of tools that do not
    /// exist, clearly more than allowed, fail whatever was lost.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        if self.cases.is_empty() {
            return Ok(Draft::settled(Finding::error("there are no cases")));
        }
        let calls = self.measure(context)?;
        let (lost, total) = (calls.lost(), self.cases.len());
        let (invented, valid) = calls.invented();
        if valid == 0 && lost == 0 {
            return Ok(Draft::settled(Finding {
                evidence: calls.evidence(),
                ..Finding::skip("neither model makes a valid call")
            }));
        }
        let interval = binomial::clopper_pearson(lost, total);
        let sound = |calls: &[CheckedCall]| calls.iter().filter(|call| call.is_sound()).count();
        let (before, after) = (sound(&calls.base), sound(&calls.tuned));
        let finding = Finding {
            raw: Some(lost as f64 / total as f64),
            base_value: Some(before as f64 / total as f64),
            ft_value: Some(after as f64 / total as f64),
            ci_95: Some(interval),
            evidence: calls
                .evidence()
                .with(&RawInterval { raw_ci_95: Some(interval) })
                .with(&RawLimit::below(self.assert_lost_lt)),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!("lost {lost} of {total} tool calls; {before} were correct, {after} are"),
            )
        };
        let too_many = share_below(invented, valid.max(1), self.assert_hallucination_lte, "calls");
        if valid > 0 && too_many.beyond <= paired.level {
            let message = format!("{invented} of {valid} calls name a tool that does not exist");
            return Ok(Draft::settled(Finding { message, score: Some(0.0), ..finding }));
        }
        let most = most_hits(total, self.assert_lost_lt);
        let limit = share_below(lost, total, self.assert_lost_lt, "cases")
            .with_bound(format!("limit {most} of {total}"));
        Ok(Draft { finding, claim: Claim::Limit(limit) })
    }

    fn table(evidence: &Evidence) -> Option<EvidenceTable> {
        let found: ToolEvidence = evidence.read()?;
        let row = |case: CaseEvidence| vec![case.prompt, case.tool, case.base, case.ft];
        (!found.per_case.is_empty()).then(|| EvidenceTable {
            title: "Tool calls of".to_owned(),
            columns: ["Question", "Tool", "Base", "Fine-tuned"].map(TableColumn::text).to_vec(),
            rows: found.per_case.into_iter().map(row).collect(),
        })
    }
}
