//! `delta_kl`: divergence of the next token from the base.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::lookup::Comparison;
use super::{
    About, Evidence, FieldProblem, Finding, ItemResults, ProbeContext, ProbeKind, RawInterval, RawLimit, Stop,
};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::{DivergenceKind, mean};
use crate::paired::{Change, Claim, Draft, EffectUnit, PairedSettings, Tail};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;

/// The mean divergence of the next token between the base and the fine-tuned
/// model, over prompts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeltaKl {
    /// Prompts after which the next token is compared.
    pub prompts: Vec<Prompt>,
    /// The divergence.
    pub divergence: DivergenceKind,
    /// How many of the most likely tokens to compare; by default that of the
    /// suite.
    pub top_k: Option<usize>,
    /// Lowest mean divergence that passes without noise to compare with.
    pub assert_mean_gte: f64,
    /// Lowest z-score against noise that passes.
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

/// Evidence of [`DeltaKl`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct DeltaKlEvidence {
    divergence_kind: String,
    per_prompt: Vec<f64>,
    max: f64,
    num_prompts: usize,
}

impl DeltaKl {
    fn measure(&self, context: &ProbeContext<'_>) -> Result<Vec<f64>, Stop> {
        Comparison::new(context, self.divergence, self.top_k).after_each(context, &self.prompts)
    }

    fn evidence(&self, divergences: &[f64], raw_ci_95: Option<[f64; 2]>) -> Evidence {
        Evidence::of(&DeltaKlEvidence {
            divergence_kind: self.divergence.name().to_owned(),
            per_prompt: divergences.to_vec(),
            max: divergences.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            num_prompts: self.prompts.len(),
        })
        .with(&RawInterval { raw_ci_95 })
        .with(&RawLimit::above(self.assert_mean_gte))
        .with(&ItemResults::divergences(&self.prompts, divergences))
    }
}

impl ProbeKind for DeltaKl {
    const ABOUT: About = About {
        kind: "delta_kl",
        category: Category::Adherence,
        aspect: Aspect::Change,
        title: "Change of the next token",
        summary: "how far next-token predictions moved",
        question: "Does the fine-tuned model predict other tokens than the base?",
        measure: "Mean divergence between the next-token distributions of the two models. 0 means no change.",
        axis: "mean divergence from the base (nats)",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        FieldProblem::of_broken_rules([(self.top_k != Some(0), "top_k", "must be at least 1")])
    }

    fn on_noise(context: &ProbeContext<'_>) -> Option<Self> {
        Some(Self {
            prompts: context.packs.sentinel_prompts.iter().map(Prompt::from).collect(),
            ..Self::default()
        })
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        let divergences = self.measure(context)?;
        let Some(raw) = mean(&divergences) else { return Ok(Finding::error("there are no prompts")) };
        let interval = mean_interval(&divergences, context.seed);
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || {
            let most = match self.divergence {
                DivergenceKind::Js => std::f64::consts::LN_2,
                DivergenceKind::Kl => 1.0,
            };
            (raw >= self.assert_mean_gte, (raw / most).min(1.0))
        });
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ci_95: interval,
            evidence: self.evidence(&divergences, interval).with(&calibration),
            ..Finding::without_number(
                decision.verdict,
                format!("mean {} {raw:.4}{}", self.divergence.name(), ending(z, Self::ABOUT.kind)),
            )
        })
    }

    /// Claims that the next token moved further, or less far, than noise of the
    /// adapter's size moves it.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        let (divergences, nulls) = paired.measure_with_noise(context, |context| self.measure(context))?;
        let Some(raw) = mean(&divergences) else {
            return Ok(Draft::settled(Finding::error("there are no prompts")));
        };
        let interval = mean_interval(&divergences, context.seed);
        let least = self.assert_mean_gte;
        let small = interval.is_some_and(|[_, high]| high < least);
        let mut decided = small.then(|| (ProbeVerdict::Fail, format!("it is below {least} nats")));
        if nulls.is_empty() && !small {
            let clear = interval.is_some_and(|[low, _]| low >= least);
            let verdict = if clear { ProbeVerdict::Pass } else { ProbeVerdict::Inconclusive };
            decided = Some((verdict, "the backend has no noise to compare with".to_owned()));
        }
        let finding = Finding {
            raw: Some(raw),
            ci_95: interval,
            evidence: self.evidence(&divergences, interval),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!("next-token predictions moved by {raw:.4} nats"),
            )
        };
        let change = Change {
            observed: raw,
            nulls: nulls.iter().filter_map(|null| mean(null)).collect(),
            tail: Tail::Ratio,
            absent: ProbeVerdict::Fail,
            fallback_p: None,
            units: divergences.len(),
            unit: "prompts",
            effect_unit: EffectUnit::Nats,
            decided,
        };
        Ok(Draft { finding, claim: Claim::Change(change) })
    }

    fn attribution_prompts(&self) -> &[Prompt] {
        &self.prompts
    }
}
