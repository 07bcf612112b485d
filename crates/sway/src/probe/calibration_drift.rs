//! Whether general knowledge suffered.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::finding::evidence;
use super::kind::{FieldFault, Fields};
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Stop, all, completions, estimated_tokens};
use super::{Finding, Probe, Setting};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::paired::{Draft, PairedSettings};

/// How many items the evidence shows.
const SHOWN: usize = 5;

/// How many common endings became much less likely.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrationDrift {
    /// Which pack; `builtin` is the only one.
    pub pack: String,
    /// How many items, from the first; all if nothing is said.
    pub items_limit: Option<usize>,
    /// The share of much less likely endings that fails without a null.
    pub assert_fraction_regressed_lt: f64,
    /// The least mean change that passes without a null, in nats for each
    /// token.
    pub assert_mean_delta_gte: f64,
    /// How much less likely is much, in nats for each token.
    pub regression_nats: f64,
    /// Items in place of the pack: beginnings with their endings.
    pub items: Vec<(String, String)>,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
}

impl Default for CalibrationDrift {
    fn default() -> Self {
        Self {
            pack: "builtin".to_owned(),
            items_limit: None,
            assert_fraction_regressed_lt: 0.15,
            assert_mean_delta_gte: -0.5,
            regression_nats: 1.0,
            items: Vec::new(),
            assert_z_gte: 3.0,
        }
    }
}

impl Fields for CalibrationDrift {
    const KIND: &'static str = "calibration_drift";
    const CATEGORY: Category = Category::Calibration;
    const DESCRIPTION: &'static str = "whether general knowledge suffered";

    fn faults(&self) -> Vec<FieldFault> {
        let positive = self.assert_fraction_regressed_lt > 0.0;
        FieldFault::where_broken([
            (self.pack == "builtin", "pack", "must be `builtin`; give others as `items`"),
            (positive, "assert_fraction_regressed_lt", "must be above 0"),
        ])
    }

    fn calibration(_setting: &Setting<'_>) -> Option<Self> {
        Some(Self { items_limit: Some(10), ..Self::default() })
    }
}

impl CalibrationDrift {
    /// The items that are asked.
    pub fn chosen<'a>(&'a self, setting: &Setting<'a>) -> &'a [(String, String)] {
        let items = if self.items.is_empty() { &setting.packs.calibration_pack } else { &self.items };
        &items[..self.items_limit.unwrap_or(items.len()).min(items.len())]
    }

    /// How much likelier each item's ending became, in nats for each token.
    pub fn measure(&self, setting: &Setting<'_>) -> Result<Vec<f64>, Stop> {
        all(self.chosen(setting).iter().map(|(prompt, gold)| {
            let (base, tuned) = completions(setting, prompt, gold)?;
            Ok::<_, Stop>((tuned - base) / estimated_tokens(gold))
        }))
    }
}

impl Probe for CalibrationDrift {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        let changes = self.measure(setting)?;
        let Some(average) = mean(&changes) else { return Ok(Finding::error("no items are given")) };
        let total = changes.len();
        let flags: Vec<f64> =
            changes.iter().map(|change| f64::from(u8::from(*change < -self.regression_nats))).collect();
        let mut regressed: Vec<usize> = (0..total).filter(|item| flags[*item] > 0.0).collect();
        let count = regressed.len();
        regressed.sort_by(|left, right| changes[*left].total_cmp(&changes[*right]));
        let items = self.chosen(setting);
        let worst: Vec<_> = regressed
            .iter()
            .take(SHOWN)
            .map(|item| json!({"prompt": items[*item].0, "gold": items[*item].1, "delta": changes[*item]}))
            .collect();
        let raw = count as f64 / total as f64;
        let interval = mean_interval(&flags, setting.seed);
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Lower);
        let limit = self.assert_fraction_regressed_lt;
        let decision = decide(z, self.assert_z_gte, || {
            let passed = raw < limit && average >= self.assert_mean_delta_gte;
            let kept = (1.0 - raw / limit).max(0.0);
            (passed, 0.6 * kept + 0.4 * ((average + 1.0) / 1.5).clamp(0.0, 1.0))
        });
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ft_value: Some(average),
            ci_95: interval,
            evidence: evidence(json!({
                "fraction_regressed": raw,
                "mean_delta_nats": average,
                "regressed_count": count,
                "total_items": total,
                "worst_offenders": worst,
                "regression_nats_threshold": self.regression_nats,
                "raw_ci_95": interval,
                "z_by_rank": by_rank,
            })),
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "{count} of {total} endings lost more than {} nats, {average:+.3} on average{}",
                    self.regression_nats,
                    ending(z, Self::KIND)
                ),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::calibration_drift(self, setting, paired)
    }
}
