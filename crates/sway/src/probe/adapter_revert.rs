//! Whether the tuned model falls back to what the base says when it is asked
//! in other words.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cases::{Case, check_cases};
use super::finding::evidence;
use super::generations::{Pair, generations};
use super::kind::{FieldFault, Fields};
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Stop, all, both, cut};
use super::{Finding, Probe, Setting};
use crate::backend::Capability;
use crate::category::Category;
use crate::paired::{Draft, PairedSettings};
use crate::record::Verdict;

/// How many cases the evidence shows.
const SHOWN: usize = 8;

/// How often the tuned model's answer to a paraphrase means what the base's
/// means, rather than what it was taught.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterRevert {
    /// What was taught, and other ways to ask for it.
    pub cases: Vec<Case>,
    /// How long answers may be.
    pub max_new_tokens: usize,
    /// Taken for the sake of old files: vectors come from the backend.
    pub embedding_model: String,
    /// A base that is this near to the answer knew it already; the paraphrase
    /// does not count.
    pub base_gold_similarity_cap: f64,
    /// The share of reverts that fails without a null.
    pub assert_revert_rate_lt: f64,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
}

impl Default for AdapterRevert {
    fn default() -> Self {
        Self {
            cases: Vec::new(),
            max_new_tokens: 64,
            embedding_model: super::cluster_kl::EMBEDDING_MODEL.to_owned(),
            base_gold_similarity_cap: 0.75,
            assert_revert_rate_lt: 0.25,
            assert_z_gte: 3.0,
        }
    }
}

impl Fields for AdapterRevert {
    const KIND: &'static str = "adapter_revert";
    const CATEGORY: Category = Category::Adherence;
    const DESCRIPTION: &'static str = "whether paraphrases bring the base's answers back";

    fn faults(&self) -> Vec<FieldFault> {
        let positive = self.assert_revert_rate_lt > 0.0;
        check_cases(&self.cases)
            .into_iter()
            .chain(FieldFault::where_broken([(positive, "assert_revert_rate_lt", "must be above 0")]))
            .collect()
    }
}

/// What one paraphrase gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Reversion<'a> {
    /// The paraphrase.
    pub prompt: String,
    /// What the base answers.
    pub base: &'a str,
    /// What the tuned model answers.
    pub tuned: &'a str,
    /// How near the base's answer is to what was taught.
    pub base_to_gold: f64,
    /// How near the tuned model's answer is to the base's.
    pub tuned_to_base: f64,
    /// How near the tuned model's answer is to what was taught.
    pub tuned_to_gold: f64,
}

impl Reversion<'_> {
    /// What was answered, for those who read a report.
    pub(crate) fn shown(all: &[Self]) -> Value {
        let pair = |one: &Self| Pair { prompt: one.prompt.clone(), base: one.base, tuned: one.tuned };
        generations(all.iter().map(pair))
    }

    /// Whether the tuned model is nearer to the base than to what was taught.
    pub fn reverted(&self) -> bool {
        self.tuned_to_base > self.tuned_to_gold
    }
}

impl AdapterRevert {
    /// Why there is nothing to measure.
    pub(crate) fn unfit(&self, setting: &Setting<'_>) -> Option<Finding> {
        if self.cases.is_empty() {
            return Some(Finding::error("no cases are given"));
        }
        let able = setting.can(Capability::Embedding);
        (!able).then(|| Finding::skip("the backend makes no vectors of texts"))
    }

    /// What each paraphrase of each case gave.
    pub fn measure<'a>(&self, setting: &Setting<'a>) -> Result<Vec<Reversion<'a>>, Stop> {
        let paraphrases =
            self.cases.iter().flat_map(|case| case.paraphrases.iter().map(move |asked| (case, asked)));
        all(paraphrases.map(|(case, asked)| {
            let written = both(
                setting.answers.generation(&setting.base, asked, self.max_new_tokens),
                setting.answers.generation(&setting.tuned, asked, self.max_new_tokens),
            );
            let ((base, tuned), gold) = both(written, setting.answers.embedding(&case.gold))?;
            let (of_base, of_tuned) =
                both(setting.answers.embedding(base), setting.answers.embedding(tuned))?;
            Ok::<_, Stop>(Reversion {
                prompt: asked.clone(),
                base,
                tuned,
                base_to_gold: cosine(of_base, gold),
                tuned_to_base: cosine(of_tuned, of_base),
                tuned_to_gold: cosine(of_tuned, gold),
            })
        }))
    }
}

fn cosine(left: &[f32], right: &[f32]) -> f64 {
    let product = |left: &[f32], right: &[f32]| -> f64 {
        left.iter().zip(right).map(|(left, right)| f64::from(*left) * f64::from(*right)).sum()
    };
    let lengths = (product(left, left) * product(right, right)).sqrt();
    if lengths == 0.0 { 0.0 } else { product(left, right) / lengths }
}

impl Probe for AdapterRevert {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        if let Some(reason) = self.unfit(setting) {
            return Ok(reason);
        }
        let measured = self.measure(setting)?;
        let (kept, dropped): (Vec<_>, Vec<_>) =
            measured.iter().partition(|found| found.base_to_gold <= self.base_gold_similarity_cap);
        let reverts = kept.iter().filter(|found| found.reverted()).count();
        let shown: Vec<_> = kept
            .iter()
            .take(SHOWN)
            .map(|found| {
                json!({
                    "prompt": cut(&found.prompt, 80),
                    "cos_ft_base": found.tuned_to_base,
                    "cos_ft_gold": found.tuned_to_gold,
                    "reverted": found.reverted(),
                })
            })
            .collect();
        let raw = (!kept.is_empty()).then(|| reverts as f64 / kept.len() as f64);
        let (z, by_rank) = deviations(setting, Self::KIND, raw, Better::Lower);
        let found = evidence(json!({
            "revert_rate": raw,
            "reverts": reverts,
            "total": kept.len(),
            "dropped_trivial": dropped.len(),
            "per_case": shown,
            "z_by_rank": by_rank,
            "generations": Reversion::shown(&measured),
        }));
        let Some(raw) = raw else {
            return Ok(Finding {
                score: Some(0.5),
                evidence: found,
                ..Finding::without_number(
                    Verdict::Warn,
                    "the base knew every answer already: nothing is left to tell the two apart",
                )
            });
        };
        let limit = self.assert_revert_rate_lt;
        let decision = decide(z, self.assert_z_gte, || (raw < limit, (1.0 - raw / limit).clamp(0.0, 1.0)));
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            evidence: found,
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "{reverts} of {} paraphrases bring the base back{}",
                    kept.len(),
                    ending(z, Self::KIND)
                ),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::adapter_revert(self, setting, paired)
    }
}

#[cfg(test)]
mod tests {
    use super::cosine;

    #[test]
    fn cosines_of_nothing_are_nothing() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 1.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 1.0]), 0.0);
    }
}
