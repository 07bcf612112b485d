//! `adapter_ablation`: how the change grows with the strength of the adapter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::ending;
use super::chart::{Chart, Shape};
use super::evidence::Calibration;
use super::lookup::{Comparison, all};
use super::{
    About, Evidence, FieldProblem, Finding, ItemResult, ItemResults, ProbeContext, ProbeKind, RawInterval,
    RawLimit, Stop,
};
use crate::backend::Capability;
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::linear_fit::LinearFit;
use crate::numbers::{DivergenceKind, mean};
use crate::paired::{Claim, Draft, NO_CHANGE, PairedSettings, mean_above};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::statistics::Statistics;
use crate::verdict::Aspect;
use crate::view::{Real, View};

/// The divergence as a function of the strength of the adapter.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterAblation {
    /// Prompts after which the next token is compared.
    pub prompts: Vec<Prompt>,
    /// Strengths of the adapter, where 1 is as trained; at least three.
    pub lambdas: Vec<f64>,
    /// The divergence.
    pub divergence: DivergenceKind,
    /// How many of the most likely tokens to compare; by default that of the
    /// suite.
    pub top_k: Option<usize>,
    /// Lowest R² of a straight line that passes.
    pub assert_linearity_gte: f64,
    /// Range of strengths in which the curve must reach 90 % of its maximum.
    pub assert_saturation_between: (f64, f64),
    /// Lowest ratio of the curve at the greatest strength to that at 1.
    pub assert_overshoot_gte: f64,
    /// Accepted for compatibility with dlm-sway; this kind has no z-score.
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

/// Evidence of [`AdapterAblation`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct AblationEvidence {
    lambdas: Vec<f64>,
    mean_divergence_per_lambda: Vec<f64>,
    linearity: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    linearity_per_prompt: Option<Vec<f64>>,
}

/// The shape of the curve, under the reference statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct CurveEvidence {
    saturation_lambda: Option<f64>,
    saturation_reason: String,
    overshoot: f64,
    passed_linearity: bool,
    passed_saturation: bool,
    passed_overshoot: bool,
}

/// The shape of the curve.
#[derive(Clone, Debug, PartialEq)]
struct CurveShape {
    linearity: f64,
    saturation: Option<f64>,
    reason: &'static str,
    overshoot: f64,
}

impl CurveShape {
    fn of(lambdas: &[f64], curve: &[f64]) -> Self {
        let linearity =
            LinearFit::least_squares(lambdas, curve).map_or(0.0, |line| line.r_squared(lambdas, curve));
        let (saturation, reason) = saturation(lambdas, curve);
        Self { linearity, saturation, reason, overshoot: overshoot(lambdas, curve) }
    }
}

/// The first strength at which the curve reaches 90 % of its maximum.
fn saturation(lambdas: &[f64], curve: &[f64]) -> (Option<f64>, &'static str) {
    let most = curve.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most <= 0.0 {
        return (None, "flat_curve");
    }
    let Some(at) = curve.iter().position(|value| *value >= 0.9 * most) else { return (None, "flat_curve") };
    let drops = curve[..=at].windows(2).any(|pair| pair[1] < pair[0] - 1e-9);
    (Some(lambdas[at]), if drops { "non_monotonic" } else { "found" })
}

/// The curve at the greatest strength over that at strength 1.
fn overshoot(lambdas: &[f64], curve: &[f64]) -> f64 {
    let greatest = (0..lambdas.len()).max_by(|left, right| lambdas[*left].total_cmp(&lambdas[*right]));
    let one = lambdas.iter().position(|lambda| (lambda - 1.0).abs() <= 1e-6);
    match (greatest, one) {
        (Some(greatest), Some(one)) if greatest != one && curve[one] > 0.0 => curve[greatest] / curve[one],
        _ => 1.0,
    }
}

impl AdapterAblation {
    /// Why there is nothing to measure.
    fn not_applicable(&self, context: &ProbeContext<'_>) -> Option<Finding> {
        if self.prompts.is_empty() {
            return Some(Finding::error("there are no prompts"));
        }
        (!context.can(Capability::Scalable)).then(|| Finding::skip("the backend cannot scale the adapter"))
    }

    /// The divergence after each prompt, strength by strength.
    fn measure(&self, context: &ProbeContext<'_>) -> Result<Vec<Vec<f64>>, Stop> {
        let least = self.lambdas.iter().copied().fold(f64::INFINITY, f64::min);
        let from = View::Scaled(Real(least));
        all(self.lambdas.iter().map(|lambda| {
            let to = View::Scaled(Real(*lambda));
            Comparison { base: &from, tuned: &to, ..Comparison::new(context, self.divergence, self.top_k) }
                .after_each(context, &self.prompts)
        }))
    }
}

impl ProbeKind for AdapterAblation {
    const ABOUT: About = About {
        kind: "adapter_ablation",
        category: Category::Ablation,
        aspect: Aspect::Behavior,
        title: "Strength of the adapter",
        summary: "how the change grows with the strength of the adapter",
        question: "Does the effect grow steadily with the strength of the adapter?",
        measure: "How straight the curve is from no adapter to the whole adapter (R²).",
        axis: "straightness of the curve (R²)",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        let finite = self.lambdas.iter().all(|lambda| lambda.is_finite());
        FieldProblem::of_broken_rules([
            (self.lambdas.len() >= 3, "lambdas", "needs at least three strengths"),
            (finite, "lambdas", "must be finite"),
            (self.top_k != Some(0), "top_k", "must be at least 1"),
        ])
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        if let Some(reason) = self.not_applicable(context) {
            return Ok(reason);
        }
        let curve: Vec<f64> =
            self.measure(context)?.iter().map(|divergences| mean(divergences).unwrap_or(0.0)).collect();
        let shape = CurveShape::of(&self.lambdas, &curve);
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
        let evidence = Evidence::of(&AblationEvidence {
            lambdas: self.lambdas.clone(),
            mean_divergence_per_lambda: curve,
            linearity: shape.linearity,
            linearity_per_prompt: None,
        })
        .with(&CurveEvidence {
            saturation_lambda: shape.saturation,
            saturation_reason: shape.reason.to_owned(),
            overshoot: shape.overshoot,
            passed_linearity: straight,
            passed_saturation: saturates,
            passed_overshoot: overshoots,
        })
        .with(&RawLimit::above(self.assert_linearity_gte))
        .with(&Calibration::default());
        let at = shape.saturation.map_or_else(|| "nowhere".to_owned(), |strength| format!("at {strength}"));
        Ok(Finding {
            score: Some(score),
            raw: Some(shape.linearity),
            evidence,
            ..Finding::without_number(
                if straight && saturates && overshoots { ProbeVerdict::Pass } else { ProbeVerdict::Fail },
                format!(
                    "R² {:.2}, saturates {at}, overshoot {:.2}{}",
                    shape.linearity,
                    shape.overshoot,
                    ending(None, Self::ABOUT.kind)
                ),
            )
        })
    }

    /// Claims that the change grows steadily with the strength.
    ///
    /// A divergence grows with the square of a small change, so its square root
    /// is what should lie on a line. dlm-sway tests the divergence itself, and
    /// its saturation and overshoot, which reject exactly that growth.
    fn draft(&self, context: &ProbeContext<'_>, _paired: &PairedSettings) -> Result<Draft, Stop> {
        if let Some(reason) = self.not_applicable(context) {
            return Ok(Draft::settled(reason));
        }
        let measured = self.measure(context)?;
        let curve: Vec<f64> = measured.iter().map(|divergences| mean(divergences).unwrap_or(0.0)).collect();
        if curve.iter().all(|divergence| *divergence < NO_CHANGE) {
            let message = "predictions do not move at any strength";
            return Ok(Draft::settled(Finding::without_number(ProbeVerdict::Fail, message)));
        }
        let straightness = |values: Vec<f64>| {
            let roots: Vec<f64> = values.iter().map(|value| value.max(0.0).sqrt()).collect();
            LinearFit::least_squares(&self.lambdas, &roots)
                .filter(|line| line.slope > 0.0)
                .map_or(0.0, |line| line.r_squared(&self.lambdas, &roots))
        };
        let each: Vec<f64> = (0..self.prompts.len())
            .map(|prompt| straightness(measured.iter().map(|divergences| divergences[prompt]).collect()))
            .collect();
        let raw = mean(&each).unwrap_or(0.0);
        let interval = mean_interval(&each, context.seed);
        let limit = mean_above(&each, self.assert_linearity_gte, "prompts")
            .with_bound(format!("at least {} wanted", self.assert_linearity_gte));
        let claim = Claim::Shape(limit);
        // Without an adapter nothing moves, which is a straight line too.
        let item = |(prompt, straight): (&Prompt, &f64)| ItemResult::new(&prompt.to_string(), 1.0, *straight);
        let items =
            ItemResults::higher_is_better("R² of the growth", self.prompts.iter().zip(&each).map(item));
        let evidence = Evidence::of(&AblationEvidence {
            lambdas: self.lambdas.clone(),
            mean_divergence_per_lambda: curve,
            linearity: raw,
            linearity_per_prompt: Some(each),
        })
        .with(&RawInterval { raw_ci_95: interval })
        .with(&RawLimit::above(self.assert_linearity_gte))
        .with(&items);
        let finding = Finding {
            raw: Some(raw),
            ci_95: interval,
            evidence,
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!("R² of the square root of the divergence {raw:.2}"),
            )
        };
        Ok(Draft { finding, claim })
    }

    fn chart(evidence: &Evidence, _statistics: Statistics) -> Option<Chart> {
        let found: AblationEvidence = evidence.read()?;
        let axes = ["strength of the adapter (1 is as trained)", "mean divergence from the base (nats)"];
        let mut shape = Shape::curve(&found.lambdas, &found.mean_divergence_per_lambda, axes)?;
        let saturation = evidence.read::<CurveEvidence>().and_then(|curve| curve.saturation_lambda);
        if let (Shape::Curve { mark, .. }, Some(at)) = (&mut shape, saturation) {
            *mark = Some((at, "90 %".to_owned()));
        }
        Some(Chart {
            about: "Divergence from the base when only a part of the adapter is applied, or more than all \
                    of it. The rise should be steady."
                .to_owned(),
            caption: "divergence by strength".to_owned(),
            shape,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_that_of_dlm_sway() {
        let lambdas = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25];
        let shape = CurveShape::of(&lambdas, &[0.0, 0.01, 0.03, 0.06, 0.09, 0.1]);
        assert!((shape.linearity - 0.9754318618042227).abs() < 1e-12);
        // In binary, 0.09 is slightly less than nine tenths of 0.1.
        assert_eq!((shape.saturation, shape.reason), (Some(1.25), "found"));
        assert!((shape.overshoot - 1.1111111111111112).abs() < 1e-15);
    }

    #[test]
    fn unusual_curves_have_a_shape() {
        assert_eq!(saturation(&[0.0, 1.0, 2.0], &[0.0, 0.0, 0.0]), (None, "flat_curve"));
        assert_eq!(saturation(&[0.0, 0.5, 1.0, 2.0], &[0.2, 0.1, 0.9, 1.0]), (Some(1.0), "non_monotonic"));
        assert_eq!(overshoot(&[0.0, 0.5, 2.0], &[0.0, 0.1, 0.2]), 1.0);
        assert_eq!(overshoot(&[0.0, 0.5, 1.0], &[0.0, 0.1, 0.2]), 1.0);
        assert_eq!(overshoot(&[0.0, 1.0, 2.0], &[0.0, 0.0, 0.2]), 1.0);
        assert_eq!(CurveShape::of(&[0.0, 1.0, 2.0], &[0.0; 3]).linearity, 1.0);
    }
}
