//! How far the tuned model's next words are from the base's.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::finding::evidence;
use super::kind::{FieldFault, Fields};
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Comparison, Stop};
use super::{Finding, Probe, Setting};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::{DivergenceKind, mean};
use crate::paired::{Draft, PairedSettings};

/// How far the tuned model's next words are from the base's, over prompts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeltaKl {
    /// Where the next words are compared.
    pub prompts: Vec<String>,
    /// Which distance.
    pub divergence: DivergenceKind,
    /// How many of the likeliest tokens are compared; the suite's number if
    /// nothing is said.
    pub top_k: Option<usize>,
    /// The least mean distance that passes without a null.
    pub assert_mean_gte: f64,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
}

impl Default for DeltaKl {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            divergence: DivergenceKind::Js,
            top_k: None,
            assert_mean_gte: 0.02,
            assert_z_gte: 3.0,
        }
    }
}

impl Fields for DeltaKl {
    const KIND: &'static str = "delta_kl";
    const CATEGORY: Category = Category::Adherence;
    const DESCRIPTION: &'static str = "how far the next words moved";

    fn faults(&self) -> Vec<FieldFault> {
        FieldFault::where_broken([(self.top_k != Some(0), "top_k", "must be at least 1")])
    }

    fn calibration(setting: &Setting<'_>) -> Option<Self> {
        Some(Self { prompts: setting.packs.sentinel_prompts.clone(), ..Self::default() })
    }
}

impl DeltaKl {
    /// The distance behind each prompt.
    pub fn measure(&self, setting: &Setting<'_>) -> Result<Vec<f64>, Stop> {
        Comparison {
            kind: self.divergence,
            top_k: self.top_k.unwrap_or(setting.top_k),
            base: &setting.base,
            tuned: &setting.tuned,
        }
        .behind_each(setting, &self.prompts)
    }
}

impl Probe for DeltaKl {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        let distances = self.measure(setting)?;
        let Some(raw) = mean(&distances) else { return Ok(Finding::error("no prompts are given")) };
        let interval = mean_interval(&distances, setting.seed);
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || {
            let most = match self.divergence {
                DivergenceKind::Js => std::f64::consts::LN_2,
                DivergenceKind::Kl => 1.0,
            };
            (raw >= self.assert_mean_gte, (raw / most).min(1.0))
        });
        let largest = distances.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ci_95: interval,
            evidence: evidence(json!({
                "divergence_kind": self.divergence.name(),
                "per_prompt": distances,
                "max": largest,
                "num_prompts": self.prompts.len(),
                "raw_ci_95": interval,
                "z_by_rank": by_rank,
            })),
            ..Finding::without_number(
                decision.verdict,
                format!("mean {} {raw:.4}{}", self.divergence.name(), ending(z, Self::KIND)),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::delta_kl(self, setting, paired)
    }

    fn attribution_prompts(&self) -> &[String] {
        &self.prompts
    }
}
