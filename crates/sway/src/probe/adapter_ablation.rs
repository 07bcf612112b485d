//! How the change behaves when there is less or more of it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::finding::evidence;
use super::kind::{FieldFault, Fields};
use super::nulls::ending;
use super::reading::{Comparison, Stop, all};
use super::{Finding, Probe, Setting};
use crate::backend::Capability;
use crate::category::Category;
use crate::numbers::linear_fit::LinearFit;
use crate::numbers::{DivergenceKind, mean};
use crate::paired::{Draft, PairedSettings};
use crate::record::Verdict;
use crate::view::{Real, View};

/// The distance as a function of the strength of the change.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterAblation {
    /// Where the next words are compared.
    pub prompts: Vec<String>,
    /// The strengths; at least three.
    pub lambdas: Vec<f64>,
    /// Which distance.
    pub divergence: DivergenceKind,
    /// How many of the likeliest tokens are compared; the suite's number if
    /// nothing is said.
    pub top_k: Option<usize>,
    /// How straight the curve must be.
    pub assert_linearity_gte: f64,
    /// Between which strengths the curve must come near its highest point.
    pub assert_saturation_between: (f64, f64),
    /// How much higher the curve must be at the greatest strength than at 1.
    pub assert_overshoot_gte: f64,
    /// Taken for the sake of old files: noise says nothing about this kind.
    pub assert_z_gte: f64,
}

impl Default for AdapterAblation {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            lambdas: vec![0.0, 0.25, 0.5, 0.75, 1.0, 1.25],
            divergence: DivergenceKind::Js,
            top_k: None,
            assert_linearity_gte: 0.85,
            assert_saturation_between: (0.3, 1.05),
            assert_overshoot_gte: 1.02,
            assert_z_gte: 3.0,
        }
    }
}

impl Fields for AdapterAblation {
    const KIND: &'static str = "adapter_ablation";
    const CATEGORY: Category = Category::Ablation;
    const DESCRIPTION: &'static str = "how the change grows with its strength";

    fn faults(&self) -> Vec<FieldFault> {
        let finite = self.lambdas.iter().all(|lambda| lambda.is_finite());
        FieldFault::where_broken([
            (self.lambdas.len() >= 3, "lambdas", "needs at least three strengths"),
            (finite, "lambdas", "must be finite"),
            (self.top_k != Some(0), "top_k", "must be at least 1"),
        ])
    }
}

/// The curve's shape.
#[derive(Clone, Debug, PartialEq)]
struct Shape {
    linearity: f64,
    saturation: Option<f64>,
    reason: &'static str,
    overshoot: f64,
}

impl Shape {
    fn of(lambdas: &[f64], curve: &[f64]) -> Self {
        let linearity =
            LinearFit::least_squares(lambdas, curve).map_or(0.0, |line| line.r_squared(lambdas, curve));
        let (saturation, reason) = saturation(lambdas, curve);
        Self { linearity, saturation, reason, overshoot: overshoot(lambdas, curve) }
    }
}

/// The first strength of the list that comes near the highest point.
fn saturation(lambdas: &[f64], curve: &[f64]) -> (Option<f64>, &'static str) {
    let most = curve.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most <= 0.0 {
        return (None, "flat_curve");
    }
    let Some(at) = curve.iter().position(|value| *value >= 0.9 * most) else { return (None, "flat_curve") };
    let drops = curve[..=at].windows(2).any(|pair| pair[1] < pair[0] - 1e-9);
    (Some(lambdas[at]), if drops { "non_monotonic" } else { "found" })
}

/// The highest strength against the strength 1.
fn overshoot(lambdas: &[f64], curve: &[f64]) -> f64 {
    let greatest = (0..lambdas.len()).max_by(|left, right| lambdas[*left].total_cmp(&lambdas[*right]));
    let one = lambdas.iter().position(|lambda| (lambda - 1.0).abs() <= 1e-6);
    match (greatest, one) {
        (Some(greatest), Some(one)) if greatest != one && curve[one] > 0.0 => curve[greatest] / curve[one],
        _ => 1.0,
    }
}

impl AdapterAblation {
    /// The distance behind each prompt, for each strength in turn.
    pub fn measure(&self, setting: &Setting<'_>) -> Result<Vec<Vec<f64>>, Stop> {
        let least = self.lambdas.iter().copied().fold(f64::INFINITY, f64::min);
        let from = View::Scaled(Real(least));
        all(self.lambdas.iter().map(|lambda| {
            let to = View::Scaled(Real(*lambda));
            Comparison {
                kind: self.divergence,
                top_k: self.top_k.unwrap_or(setting.top_k),
                base: &from,
                tuned: &to,
            }
            .behind_each(setting, &self.prompts)
        }))
    }
}

impl Probe for AdapterAblation {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        if self.prompts.is_empty() {
            return Ok(Finding::error("no prompts are given"));
        }
        if !setting.can(Capability::Scalable) {
            return Ok(Finding::skip("the backend cannot scale the change"));
        }
        let curve: Vec<f64> =
            self.measure(setting)?.iter().map(|distances| mean(distances).unwrap_or(0.0)).collect();
        let shape = Shape::of(&self.lambdas, &curve);
        let (low, high) = self.assert_saturation_between;
        let straight = shape.linearity >= self.assert_linearity_gte;
        let saturates = shape.saturation.is_some_and(|strength| (low..=high).contains(&strength));
        let overshoots = shape.overshoot >= self.assert_overshoot_gte;
        let linear_part = if self.assert_linearity_gte == 0.0 {
            1.0
        } else {
            (shape.linearity / self.assert_linearity_gte).clamp(0.0, 1.0)
        };
        let score = 0.4 * linear_part
            + 0.3 * if saturates { 1.0 } else { 0.3 }
            + 0.3 * ((shape.overshoot - 1.0) / 0.2).clamp(0.0, 1.0);
        let near = shape.saturation.map_or_else(|| "nowhere".to_owned(), |strength| format!("at {strength}"));
        Ok(Finding {
            score: Some(score),
            raw: Some(shape.linearity),
            evidence: evidence(json!({
                "lambdas": self.lambdas,
                "mean_divergence_per_lambda": curve,
                "linearity": shape.linearity,
                "saturation_lambda": shape.saturation,
                "saturation_reason": shape.reason,
                "overshoot": shape.overshoot,
                "passed_linearity": straight,
                "passed_saturation": saturates,
                "passed_overshoot": overshoots,
                "z_by_rank": null,
            })),
            ..Finding::without_number(
                if straight && saturates && overshoots { Verdict::Pass } else { Verdict::Fail },
                format!(
                    "R² {:.2}, near its highest point {near}, overshoot {:.2}{}",
                    shape.linearity,
                    shape.overshoot,
                    ending(None, Self::KIND)
                ),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::adapter_ablation(self, setting, paired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_that_of_dlm_sway() {
        let lambdas = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25];
        let shape = Shape::of(&lambdas, &[0.0, 0.01, 0.03, 0.06, 0.09, 0.1]);
        assert!((shape.linearity - 0.9754318618042227).abs() < 1e-12);
        // 0.09 is not quite nine tenths of 0.1 in binary.
        assert_eq!((shape.saturation, shape.reason), (Some(1.25), "found"));
        assert!((shape.overshoot - 1.1111111111111112).abs() < 1e-15);
    }

    #[test]
    fn odd_curves_have_odd_shapes() {
        assert_eq!(saturation(&[0.0, 1.0, 2.0], &[0.0, 0.0, 0.0]), (None, "flat_curve"));
        assert_eq!(saturation(&[0.0, 0.5, 1.0, 2.0], &[0.2, 0.1, 0.9, 1.0]), (Some(1.0), "non_monotonic"));
        assert_eq!(overshoot(&[0.0, 0.5, 2.0], &[0.0, 0.1, 0.2]), 1.0);
        assert_eq!(overshoot(&[0.0, 0.5, 1.0], &[0.0, 0.1, 0.2]), 1.0);
        assert_eq!(overshoot(&[0.0, 1.0, 2.0], &[0.0, 0.0, 0.2]), 1.0);
        assert_eq!(Shape::of(&[0.0, 1.0, 2.0], &[0.0; 3]).linearity, 1.0);
    }
}
