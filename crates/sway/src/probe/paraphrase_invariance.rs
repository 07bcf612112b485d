//! `paraphrase_invariance`: whether what was taught holds for paraphrases.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::cases::check_cases;
use super::kind::from_pack;
use super::lookup::{all, both, completions, cut, estimated_tokens};
use super::{
    About, Case, Evidence, FieldProblem, Finding, ItemResult, ItemResults, ProbeContext, ProbeKind,
    RawInterval, RawLimit, Stop, TaughtWordsOnly,
};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::numbers::sign_flip_test::sign_flip_test;
use crate::numbers::student_t::TTest;
use crate::paired::{Change, Claim, Draft, EffectUnit, PairedSettings, Tail};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;

/// How many cases the evidence shows under the reference statistics.
const SHOWN: usize = 8;

/// The purpose of fine-tuning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// Answers should hold for paraphrases.
    #[default]
    Generalize,
    /// Answers should hold for the taught words only.
    Memorize,
    /// Both are fine; judged as `generalize`.
    Both,
}

/// How much more likely the answer became after the taught question, and after
/// its paraphrases.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ParaphraseInvariance {
    /// Taught questions with their paraphrases.
    pub cases: Vec<Case>,
    /// The purpose of fine-tuning.
    pub intent: Intent,
    /// Lowest gain after the taught question, in nats per token.
    pub min_verbatim_lift: f64,
    /// Lowest share of that gain that paraphrases must reach.
    pub min_generalization_ratio: f64,
    /// Highest share of that gain that paraphrases may reach, with the intent
    /// `memorize`.
    pub max_generalization_ratio_if_memorize: f64,
    /// Lowest z-score against noise that passes.
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

/// Evidence of [`ParaphraseInvariance`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ParaphraseEvidence {
    verbatim_lift_mean: f64,
    paraphrase_lift_mean: f64,
    generalization_ratio: f64,
    intent: Intent,
    per_case: Vec<CaseEvidence>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CaseEvidence {
    prompt: String,
    verbatim_lift: f64,
    paraphrase_lift: f64,
}

/// What paraphrases gained beyond the required share, under paired statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct SurplusEvidence {
    surplus_ci_95: Option<[f64; 2]>,
}

/// The gains of one case, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gain {
    verbatim: f64,
    /// Mean over the paraphrases.
    paraphrased: f64,
    /// Log-likelihoods of the answer in the base and the fine-tuned model, after
    /// the prompts that the intent judges.
    judged: (f64, f64),
}

/// The mean gains of all cases.
struct Gains {
    verbatim: f64,
    paraphrased: f64,
}

impl Gains {
    /// None without cases.
    fn of(gains: &[Gain]) -> Option<Self> {
        let of = |one: fn(&Gain) -> f64| mean(&gains.iter().map(one).collect::<Vec<_>>());
        Some(Self { verbatim: of(|gain| gain.verbatim)?, paraphrased: of(|gain| gain.paraphrased)? })
    }

    fn ratio(&self) -> f64 {
        if self.verbatim.abs() > 1e-9 { self.paraphrased / self.verbatim } else { 0.0 }
    }
}

impl ParaphraseInvariance {
    fn measure(&self, context: &ProbeContext<'_>) -> Result<Vec<Gain>, Stop> {
        all(self.cases.iter().map(|case| {
            let tokens = estimated_tokens(&case.gold);
            let scores = |prompt: &Prompt| {
                let (base, tuned) = completions(context, prompt, &case.gold)?;
                Ok::<_, Stop>([base / tokens, tuned / tokens, (tuned - base) / tokens])
            };
            let (verbatim, others) = both(scores(&case.prompt), all(case.paraphrases.iter().map(scores)))?;
            let paraphrased = [0, 1, 2].map(|part| {
                mean(&others.iter().map(|scores| scores[part]).collect::<Vec<_>>()).unwrap_or(0.0)
            });
            let judged = if self.intent == Intent::Memorize { verbatim } else { paraphrased };
            Ok::<_, Stop>(Gain {
                verbatim: verbatim[2],
                paraphrased: paraphrased[2],
                judged: (judged[0], judged[1]),
            })
        }))
    }

    fn by_limits(&self, verbatim: f64, ratio: f64) -> (bool, f64) {
        let lifted = verbatim >= self.min_verbatim_lift;
        let lift_score = share_of_limit(verbatim, self.min_verbatim_lift);
        match self.intent {
            Intent::Memorize => (lifted && ratio <= self.max_generalization_ratio_if_memorize, lift_score),
            Intent::Generalize | Intent::Both => (
                lifted && ratio >= self.min_generalization_ratio,
                0.5 * share_of_limit(ratio, self.min_generalization_ratio) + 0.5 * lift_score,
            ),
        }
    }

    fn results(&self, gains: &[Gain]) -> ItemResults {
        let item = |(case, gain): (&Case, &Gain)| {
            let text = format!("{} → {}", case.prompt, case.gold.trim());
            ItemResult::new(&text, gain.judged.0, gain.judged.1)
        };
        ItemResults::higher_is_better(ItemResults::NATS_PER_TOKEN, self.cases.iter().zip(gains).map(item))
    }

    fn evidence(&self, means: &Gains, per_case: Vec<CaseEvidence>, interval: Option<[f64; 2]>) -> Evidence {
        Evidence::of(&ParaphraseEvidence {
            verbatim_lift_mean: means.verbatim,
            paraphrase_lift_mean: means.paraphrased,
            generalization_ratio: means.ratio(),
            intent: self.intent,
            per_case,
        })
        .with(&RawInterval { raw_ci_95: interval })
    }
}

/// How much of a limit is reached; all of a limit of 0.
fn share_of_limit(value: f64, limit: f64) -> f64 {
    if limit == 0.0 { 1.0 } else { (value / limit).clamp(0.0, 1.0) }
}

impl ProbeKind for ParaphraseInvariance {
    const ABOUT: About = About {
        kind: "paraphrase_invariance",
        category: Category::Attribution,
        aspect: Aspect::Learning,
        title: "Learned or memorized",
        summary: "whether what was taught holds for paraphrases",
        question: "Does what was taught hold when the question is paraphrased?",
        measure: "Gain of the taught answer, after the taught question and after its paraphrases.",
        axis: "gain of the taught answers (nats per token)",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        check_cases(&self.cases).into_iter().collect()
    }

    fn on_noise(context: &ProbeContext<'_>) -> Option<Self> {
        from_pack(&context.packs.paraphrase_calibration)
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        let gains = self.measure(context)?;
        let Some(means) = Gains::of(&gains) else { return Ok(Finding::error("there are no cases")) };
        let (raw, others, ratio) = (means.verbatim, means.paraphrased, means.ratio());
        let verbatim: Vec<f64> = gains.iter().map(|gain| gain.verbatim).collect();
        let interval = mean_interval(&verbatim, context.seed);
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || self.by_limits(raw, ratio));
        let case = |(case, gain): (&Case, &Gain)| CaseEvidence {
            prompt: cut(&case.prompt.to_string(), 80),
            verbatim_lift: gain.verbatim,
            paraphrase_lift: gain.paraphrased,
        };
        let per_case = self.cases.iter().zip(&gains).take(SHOWN).map(case).collect();
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            base_value: Some(raw),
            ft_value: Some(others),
            ci_95: interval,
            evidence: self
                .evidence(&means, per_case, interval)
                .with(&RawLimit::above(self.min_verbatim_lift))
                .with(&self.results(&gains))
                .with(&calibration),
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "taught questions gained {raw:+.3}, paraphrases {others:+.3} (ratio {ratio:.2}){}",
                    ending(z, Self::ABOUT.kind)
                ),
            )
        })
    }

    /// Claims that answers gained more than under noise: after paraphrases, or
    /// after the taught questions if memorizing is intended.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        let (gains, nulls) = paired.measure_with_noise(context, |context| self.measure(context))?;
        let Some(means) = Gains::of(&gains) else {
            return Ok(Draft::settled(Finding::error("there are no cases")));
        };
        let memorize = self.intent == Intent::Memorize;
        let ratio =
            if memorize { self.max_generalization_ratio_if_memorize } else { self.min_generalization_ratio };
        let surplus: Vec<f64> = gains.iter().map(|gain| gain.paraphrased - ratio * gain.verbatim).collect();
        let test = TTest::of(&surplus);
        let learned = means.verbatim >= self.min_verbatim_lift;
        let decided = match test {
            Some(test) if memorize && learned && test.p_greater(0.0) <= paired.level => {
                Some((ProbeVerdict::Fail, "paraphrases gained as well".to_owned()))
            }
            Some(test) if !memorize && learned && test.p_less(0.0) <= paired.level => {
                Some((ProbeVerdict::Fail, "it holds for the taught words only".to_owned()))
            }
            _ => None,
        };
        let taught_words_only = !memorize && decided.is_some();
        let judged_gains = |gains: &[Gain]| -> Vec<f64> {
            gains.iter().map(|gain| if memorize { gain.verbatim } else { gain.paraphrased }).collect()
        };
        let judged = judged_gains(&gains);
        let raw = mean(&judged).unwrap_or(0.0);
        let interval = mean_interval(&judged, context.seed);
        let case = |(case, gain): (&Case, &Gain)| CaseEvidence {
            prompt: case.prompt.to_string(),
            verbatim_lift: gain.verbatim,
            paraphrase_lift: gain.paraphrased,
        };
        let per_case = self.cases.iter().zip(&gains).map(case).collect();
        let finding = Finding {
            raw: Some(raw),
            base_value: Some(means.verbatim),
            ft_value: Some(means.paraphrased),
            ci_95: interval,
            evidence: self
                .evidence(&means, per_case, interval)
                .with(&SurplusEvidence { surplus_ci_95: test.map(|test| test.confidence_interval()) })
                .with(&TaughtWordsOnly { taught_words_only })
                .with(&RawLimit::above(0.0))
                .with(&self.results(&gains)),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!(
                    "answers to taught questions gained {:+.3} nats per token, to paraphrases {:+.3}",
                    means.verbatim, means.paraphrased
                ),
            )
        };
        let change = Change {
            observed: raw,
            nulls: nulls.iter().filter_map(|null| mean(&judged_gains(null))).collect(),
            tail: Tail::Gain,
            absent: ProbeVerdict::Fail,
            fallback_p: Some(sign_flip_test(&judged, context.seed)),
            units: gains.len(),
            unit: "cases",
            effect_unit: EffectUnit::NatsPerToken,
            decided,
        };
        Ok(Draft { finding, claim: Claim::Change(change) })
    }
}
