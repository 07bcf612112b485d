//! `calibration_drift`: whether general knowledge was lost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::lookup::{all, continuations, estimated_tokens};
use super::{
    About, Evidence, FieldProblem, Finding, ItemResult, ItemResults, ProbeContext, ProbeKind, RawInterval,
    RawLimit, Stop,
};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::{binomial, mean};
use crate::paired::{Claim, Draft, Limit, PairedSettings, mean_above, most_hits, share_below};
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;

/// How many items the evidence shows.
const SHOWN: usize = 5;

/// The share of common facts that became much less likely.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrationDrift {
    /// The set of facts; `builtin` is the only one.
    pub pack: String,
    /// Use only this many items; by default all.
    pub items_limit: Option<usize>,
    /// Share of lost items that fails without noise to compare with.
    pub assert_fraction_regressed_lt: f64,
    /// Lowest mean change that passes without noise to compare with, in nats
    /// per token.
    pub assert_mean_delta_gte: f64,
    /// Loss from which an item counts as lost, in nats per token.
    pub regression_nats: f64,
    /// Items that replace the set of facts: prompts with their completions.
    pub items: Vec<(String, String)>,
    /// Lowest z-score against noise that passes.
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

/// Evidence of [`CalibrationDrift`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct DriftEvidence {
    fraction_regressed: f64,
    mean_delta_nats: f64,
    regressed_count: usize,
    total_items: usize,
    worst_offenders: Vec<LostItem>,
    regression_nats_threshold: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct LostItem {
    prompt: String,
    gold: String,
    delta: f64,
}

/// The interval of the mean change, under paired statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct MeanDeltaInterval {
    mean_delta_ci_95: Option<[f64; 2]>,
}

/// Changes of all items, and which are lost.
struct Drift {
    /// Log-likelihoods of the base and the fine-tuned model, in nats per token.
    values: Vec<(f64, f64)>,
    changes: Vec<f64>,
    mean: f64,
    /// Indices of lost items, the worst first.
    lost: Vec<usize>,
}

impl Drift {
    fn share(&self) -> f64 {
        self.lost.len() as f64 / self.changes.len() as f64
    }
}

impl CalibrationDrift {
    fn items<'a>(&'a self, context: &ProbeContext<'a>) -> &'a [(String, String)] {
        let items = if self.items.is_empty() { &context.packs.calibration_pack } else { &self.items };
        &items[..self.items_limit.unwrap_or(items.len()).min(items.len())]
    }

    /// The change of the log-likelihood of each completion, in nats per token;
    /// none if there are no items.
    fn measure(&self, context: &ProbeContext<'_>) -> Result<Option<Drift>, Stop> {
        let found = all(self.items(context).iter().map(|(prompt, gold)| {
            let (base, tuned) = continuations(context, &prompt.into(), gold)?;
            let tokens = estimated_tokens(gold);
            Ok::<_, Stop>(((base / tokens, tuned / tokens), (tuned - base) / tokens))
        }))?;
        let (values, changes): (Vec<(f64, f64)>, Vec<f64>) = found.into_iter().unzip();
        let Some(mean) = mean(&changes) else { return Ok(None) };
        let mut lost: Vec<usize> =
            (0..changes.len()).filter(|item| changes[*item] < -self.regression_nats).collect();
        lost.sort_by(|left, right| changes[*left].total_cmp(&changes[*right]));
        Ok(Some(Drift { values, changes, mean, lost }))
    }

    fn results(&self, items: &[(String, String)], drift: &Drift) -> ItemResults {
        let item = |((prompt, gold), (base, tuned)): (&(String, String), &(f64, f64))| {
            ItemResult::new(&format!("{prompt} → {}", gold.trim()), *base, *tuned)
        };
        let measured = items.iter().zip(&drift.values).map(item);
        ItemResults::higher_is_better(ItemResults::NATS_PER_TOKEN, measured).lost_from(self.regression_nats)
    }

    fn evidence(&self, context: &ProbeContext<'_>, drift: &Drift, interval: Option<[f64; 2]>) -> Evidence {
        let items = self.items(context);
        let lost = |item: &usize| LostItem {
            prompt: items[*item].0.clone(),
            gold: items[*item].1.clone(),
            delta: drift.changes[*item],
        };
        Evidence::of(&DriftEvidence {
            fraction_regressed: drift.share(),
            mean_delta_nats: drift.mean,
            regressed_count: drift.lost.len(),
            total_items: drift.changes.len(),
            worst_offenders: drift.lost.iter().take(SHOWN).map(lost).collect(),
            regression_nats_threshold: self.regression_nats,
        })
        .with(&RawInterval { raw_ci_95: interval })
        .with(&RawLimit::below(self.assert_fraction_regressed_lt))
        .with(&self.results(items, drift))
    }
}

impl ProbeKind for CalibrationDrift {
    const ABOUT: About = About {
        kind: "calibration_drift",
        category: Category::Calibration,
        aspect: Aspect::Damage,
        title: "General knowledge",
        summary: "whether general knowledge was lost",
        question: "Does the fine-tuned model still know common facts?",
        measure: "Share of common facts that became clearly less likely.",
        axis: "share of facts lost",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        let positive = self.assert_fraction_regressed_lt > 0.0;
        FieldProblem::of_broken_rules([
            (self.pack == "builtin", "pack", "must be `builtin`; give other facts as `items`"),
            (positive, "assert_fraction_regressed_lt", "must be above 0"),
        ])
    }

    fn on_noise(_context: &ProbeContext<'_>) -> Option<Self> {
        Some(Self { items_limit: Some(10), ..Self::default() })
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        let Some(drift) = self.measure(context)? else { return Ok(Finding::error("there are no items")) };
        let (raw, average) = (drift.share(), drift.mean);
        let flags: Vec<f64> =
            drift.changes.iter().map(|change| f64::from(u8::from(*change < -self.regression_nats))).collect();
        let interval = mean_interval(&flags, context.seed);
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Lower);
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
            evidence: self.evidence(context, &drift, interval).with(&calibration),
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "{} of {} facts lost more than {} nats, {average:+.3} on average{}",
                    drift.lost.len(),
                    drift.changes.len(),
                    self.regression_nats,
                    ending(z, Self::ABOUT.kind)
                ),
            )
        })
    }

    /// Claims that few facts were lost, and little on average. Both must hold.
    fn draft(&self, context: &ProbeContext<'_>, _paired: &PairedSettings) -> Result<Draft, Stop> {
        let Some(drift) = self.measure(context)? else {
            return Ok(Draft::settled(Finding::error("there are no items")));
        };
        let (lost, total) = (drift.lost.len(), drift.changes.len());
        let interval = binomial::clopper_pearson(lost, total);
        let mean_delta_ci_95 = mean_interval(&drift.changes, context.seed);
        let finding = Finding {
            raw: Some(drift.share()),
            ft_value: Some(drift.mean),
            ci_95: Some(interval),
            evidence: self
                .evidence(context, &drift, Some(interval))
                .with(&MeanDeltaInterval { mean_delta_ci_95 }),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!("lost {lost} of {total} facts, {:+.2} nats per token on average", drift.mean),
            )
        };
        let few = share_below(lost, total, self.assert_fraction_regressed_lt, "items");
        let little = mean_above(&drift.changes, self.assert_mean_delta_gte, "items");
        let most = most_hits(total, self.assert_fraction_regressed_lt);
        let limit = Limit {
            bound: format!("limit {most} of {total} facts, {:+} nats per token", self.assert_mean_delta_gte),
            within: few.within.max(little.within),
            // Either may exceed the limit, so each test gets half of the level.
            beyond: (2.0 * few.beyond.min(little.beyond)).min(1.0),
            units: total,
            needed: few.needed.max(little.needed),
            unit: "items",
        };
        Ok(Draft { finding, claim: Claim::Limit(limit) })
    }
}
