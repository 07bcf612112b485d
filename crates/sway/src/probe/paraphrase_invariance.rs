//! Whether what was taught holds in other words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::cases::{Case, check_cases};
use super::finding::evidence;
use super::kind::{FieldFault, Fields, from_pack};
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Stop, all, both, completions, cut, estimated_tokens};
use super::{Finding, Probe, Setting};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::paired::{Draft, PairedSettings};

/// How many cases the evidence shows.
const SHOWN: usize = 8;

/// What the tuning was for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// Answers are to hold in other words.
    #[default]
    Generalize,
    /// Answers are to hold in these words alone.
    Memorize,
    /// Both are fine, judged as the first.
    Both,
}

/// How much likelier the answer became to the taught question, and to others
/// that ask the same.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ParaphraseInvariance {
    /// What was taught, and other ways to ask for it.
    pub cases: Vec<Case>,
    /// What the tuning was for.
    pub intent: Intent,
    /// The least gain with the taught words, in nats for each token.
    pub min_verbatim_lift: f64,
    /// The least part of that gain that other words must have.
    pub min_generalization_ratio: f64,
    /// The most of that gain that other words may have, if memorizing is
    /// wanted.
    pub max_generalization_ratio_if_memorize: f64,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
}

impl Default for ParaphraseInvariance {
    fn default() -> Self {
        Self {
            cases: Vec::new(),
            intent: Intent::Generalize,
            min_verbatim_lift: 0.2,
            min_generalization_ratio: 0.5,
            max_generalization_ratio_if_memorize: 0.5,
            assert_z_gte: 3.0,
        }
    }
}

impl Fields for ParaphraseInvariance {
    const KIND: &'static str = "paraphrase_invariance";
    const CATEGORY: Category = Category::Attribution;
    const DESCRIPTION: &'static str = "whether what was taught holds in other words";

    fn faults(&self) -> Vec<FieldFault> {
        check_cases(&self.cases).into_iter().collect()
    }

    fn calibration(setting: &Setting<'_>) -> Option<Self> {
        from_pack(&setting.packs.paraphrase_calibration)
    }
}

/// What one case gave, in nats for each token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// With the taught words.
    pub verbatim: f64,
    /// With other words, on average.
    pub paraphrased: f64,
}

impl ParaphraseInvariance {
    /// The gains of each case.
    pub fn measure(&self, setting: &Setting<'_>) -> Result<Vec<Gain>, Stop> {
        all(self.cases.iter().map(|case| {
            let tokens = estimated_tokens(&case.gold);
            let gain = |prompt: &str| {
                let (base, tuned) = completions(setting, prompt, &case.gold)?;
                Ok::<_, Stop>((tuned - base) / tokens)
            };
            let (verbatim, others) =
                both(gain(&case.prompt), all(case.paraphrases.iter().map(|prompt| gain(prompt))))?;
            Ok::<_, Stop>(Gain { verbatim, paraphrased: mean(&others).unwrap_or(0.0) })
        }))
    }

    fn by_limits(&self, verbatim: f64, ratio: f64) -> (bool, f64) {
        let lifted = verbatim >= self.min_verbatim_lift;
        let lift_score = part(verbatim, self.min_verbatim_lift);
        match self.intent {
            Intent::Memorize => (lifted && ratio <= self.max_generalization_ratio_if_memorize, lift_score),
            Intent::Generalize | Intent::Both => (
                lifted && ratio >= self.min_generalization_ratio,
                0.5 * part(ratio, self.min_generalization_ratio) + 0.5 * lift_score,
            ),
        }
    }
}

/// Which part of a limit is reached; all of a limit of nothing.
fn part(value: f64, limit: f64) -> f64 {
    if limit == 0.0 { 1.0 } else { (value / limit).clamp(0.0, 1.0) }
}

impl Probe for ParaphraseInvariance {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        let gains = self.measure(setting)?;
        let verbatim: Vec<f64> = gains.iter().map(|gain| gain.verbatim).collect();
        let paraphrased: Vec<f64> = gains.iter().map(|gain| gain.paraphrased).collect();
        let (Some(raw), Some(others)) = (mean(&verbatim), mean(&paraphrased)) else {
            return Ok(Finding::error("no cases are given"));
        };
        let ratio = if raw.abs() > 1e-9 { others / raw } else { 0.0 };
        let interval = mean_interval(&verbatim, setting.seed);
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || {
            let (passed, score) = self.by_limits(raw, ratio);
            (passed, score)
        });
        let shown: Vec<_> = self
            .cases
            .iter()
            .zip(&gains)
            .take(SHOWN)
            .map(|(case, gain)| {
                json!({
                    "prompt": cut(&case.prompt, 80),
                    "verbatim_lift": gain.verbatim,
                    "paraphrase_lift": gain.paraphrased,
                })
            })
            .collect();
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            base_value: Some(raw),
            ft_value: Some(others),
            ci_95: interval,
            evidence: evidence(json!({
                "verbatim_lift_mean": raw,
                "paraphrase_lift_mean": others,
                "generalization_ratio": ratio,
                "intent": self.intent,
                "per_case": shown,
                "raw_ci_95": interval,
                "z_by_rank": by_rank,
            })),
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "taught words gained {raw:+.3}, other words {others:+.3} (ratio {ratio:.2}){}",
                    ending(z, Self::KIND)
                ),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::paraphrase_invariance(self, setting, paired)
    }
}
