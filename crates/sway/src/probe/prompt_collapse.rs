//! Whether the change fades as more text stands before the prompt.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::finding::evidence;
use super::kind::{FieldFault, Fields};
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Comparison, Stop, all};
use super::{Finding, Probe, Setting};
use crate::backend::Capability;
use crate::category::Category;
use crate::numbers::linear_fit::half_life;
use crate::numbers::{DivergenceKind, mean};
use crate::paired::{Draft, PairedSettings};

/// After how much text before the prompt the change is halved.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PromptCollapse {
    /// Where the next words are compared.
    pub prompts: Vec<String>,
    /// How many tokens stand before; at least two numbers.
    pub context_lengths: Vec<i64>,
    /// Which distance.
    pub divergence: DivergenceKind,
    /// How many of the likeliest tokens are compared; the suite's number if
    /// nothing is said.
    pub top_k: Option<usize>,
    /// The least half-life that passes without a null.
    pub assert_half_life_tokens: f64,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
    /// Whether contexts are filled with a sentence, also where the tokenizer
    /// has tokens that say nothing.
    pub legacy_stuffing: bool,
}

impl Default for PromptCollapse {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            context_lengths: vec![0, 256, 512, 1024],
            divergence: DivergenceKind::Js,
            top_k: None,
            assert_half_life_tokens: 512.0,
            assert_z_gte: 3.0,
            legacy_stuffing: false,
        }
    }
}

impl Fields for PromptCollapse {
    const KIND: &'static str = "prompt_collapse";
    const CATEGORY: Category = Category::Adherence;
    const DESCRIPTION: &'static str = "whether the change fades behind a long context";

    fn faults(&self) -> Vec<FieldFault> {
        FieldFault::where_broken([
            (self.context_lengths.len() >= 2, "context_lengths", "needs at least two lengths"),
            (
                self.context_lengths.iter().all(|length| *length <= 1 << 20),
                "context_lengths",
                "a length is at most 1048576 tokens",
            ),
            (self.top_k != Some(0), "top_k", "must be at least 1"),
        ])
    }
}

impl PromptCollapse {
    /// The distance behind each prompt, for each length in turn.
    pub fn measure(&self, setting: &Setting<'_>) -> Result<Vec<Vec<f64>>, Stop> {
        let comparison = Comparison {
            kind: self.divergence,
            top_k: self.top_k.unwrap_or(setting.top_k),
            base: &setting.base,
            tuned: &setting.tuned,
        };
        all(self.context_lengths.iter().map(|length| {
            let before = self.before(setting, *length)?;
            all(self.prompts.iter().map(|prompt| comparison.behind(setting, &format!("{before}{prompt}"))))
        }))
    }

    /// What stands before the prompt.
    fn before(&self, setting: &Setting<'_>, length: i64) -> Result<String, Stop> {
        let length = match usize::try_from(length) {
            Ok(length) if length > 0 => length,
            _ => return Ok(String::new()),
        };
        if !self.legacy_stuffing && setting.can(Capability::Tokenizer) {
            return Ok(format!("{}\n\n", setting.answers.filler(length)?));
        }
        let sentence = &setting.packs.stuffing;
        let filler: String = if sentence.is_empty() {
            String::new()
        } else {
            sentence.chars().cycle().take(4 * length).collect()
        };
        Ok(format!("{filler}\n\n"))
    }
}

impl Probe for PromptCollapse {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        if self.prompts.is_empty() {
            return Ok(Finding::error("no prompts are given"));
        }
        let means: Vec<f64> =
            self.measure(setting)?.iter().map(|distances| mean(distances).unwrap_or(0.0)).collect();
        let lengths: Vec<f64> = self.context_lengths.iter().map(|length| *length as f64).collect();
        let raw = half_life(&lengths, &means);
        let (z, by_rank) = deviations(setting, Self::KIND, raw, Better::Higher);
        let target = self.assert_half_life_tokens;
        let decision = decide(z, self.assert_z_gte, || match raw {
            Some(raw) => (raw >= target, (raw / target).min(1.0)),
            None => (false, 0.0),
        });
        let said = match raw {
            Some(raw) => format!("the change is halved after {raw:.0} tokens"),
            None => "the change has no half-life".to_owned(),
        };
        Ok(Finding {
            score: Some(decision.score),
            raw,
            z_score: z,
            evidence: evidence(json!({
                "context_lengths": self.context_lengths,
                "mean_divergence_per_length": means,
                "divergence_kind": self.divergence.name(),
                "z_by_rank": by_rank,
            })),
            ..Finding::without_number(decision.verdict, said + &ending(z, Self::KIND))
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::prompt_collapse(self, setting, paired)
    }
}
