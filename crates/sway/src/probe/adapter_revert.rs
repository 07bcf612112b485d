//! `adapter_revert`: whether paraphrased questions bring the base's answers back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::cases::check_cases;
use super::decoding::Decoding;
use super::lookup::{all, both, cut};
use super::{
    About, Case, Evidence, FieldProblem, Finding, Generation, Generations, ItemResult, ItemResults,
    ProbeContext, ProbeKind, RawInterval, RawLimit, Stop,
};
use crate::backend::Capability;
use crate::category::Category;
use crate::numbers::binomial;
use crate::paired::{Claim, Draft, PairedSettings, share_below};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;
use crate::view::View;

/// How many cases the evidence shows.
const SHOWN: usize = 8;

/// The share of paraphrases whose answer is closer to the base's answer than to
/// the taught one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterRevert {
    /// Taught questions with their paraphrases.
    pub cases: Vec<Case>,
    /// Longest answer, in tokens.
    pub max_new_tokens: usize,
    /// Temperature of sampling; 0 takes the most likely token.
    pub temperature: f64,
    /// Sample from the most likely tokens with this total probability.
    pub top_p: f64,
    /// Seed of sampling; by default that of the suite.
    pub seed: Option<u64>,
    /// Folder of a sentence-embedding model; by default that of the suite, or
    /// else the base.
    pub embedding_model: Option<String>,
    /// Similarity of the base's answer to the taught one above which the base
    /// knew it already, and the paraphrase is dropped.
    pub base_gold_similarity_cap: f64,
    /// Share of reverted answers that fails without noise to compare with.
    pub assert_revert_rate_lt: f64,
    /// Lowest z-score against noise that passes.
    pub assert_z_gte: f64,
}

impl Default for AdapterRevert {
    fn default() -> Self {
        Self {
            cases: Vec::new(),
            max_new_tokens: 64,
            temperature: 0.0,
            top_p: 1.0,
            seed: None,
            embedding_model: None,
            base_gold_similarity_cap: 0.75,
            assert_revert_rate_lt: 0.25,
            assert_z_gte: 3.0,
        }
    }
}

/// The answers to one paraphrase, with their cosine similarities.
#[derive(Clone, Debug, PartialEq)]
struct Reversion<'a> {
    prompt: &'a Prompt,
    base: &'a str,
    tuned: &'a str,
    base_to_gold: f64,
    tuned_to_base: f64,
    tuned_to_gold: f64,
}

impl Reversion<'_> {
    fn reverted(&self) -> bool {
        self.tuned_to_base > self.tuned_to_gold
    }
}

/// Evidence of [`AdapterRevert`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct AdapterRevertEvidence {
    revert_rate: Option<f64>,
    reverts: usize,
    total: usize,
    dropped_trivial: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_case: Option<Vec<CaseEvidence>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CaseEvidence {
    prompt: String,
    cos_ft_base: f64,
    cos_ft_gold: f64,
    reverted: bool,
}

/// Reversions that count, and how many were dropped.
struct Counted<'a> {
    kept: Vec<&'a Reversion<'a>>,
    dropped: usize,
}

impl Counted<'_> {
    fn reverts(&self) -> usize {
        self.kept.iter().filter(|found| found.reverted()).count()
    }

    fn rate(&self) -> Option<f64> {
        (!self.kept.is_empty()).then(|| self.reverts() as f64 / self.kept.len() as f64)
    }

    fn evidence(&self, per_case: Option<Vec<CaseEvidence>>, all: &[Reversion<'_>]) -> Evidence {
        let generation = |one: &Reversion<'_>| Generation {
            prompt: one.prompt.to_string(),
            base: one.base.to_owned(),
            tuned: one.tuned.to_owned(),
        };
        Evidence::of(&AdapterRevertEvidence {
            revert_rate: self.rate(),
            reverts: self.reverts(),
            total: self.kept.len(),
            dropped_trivial: self.dropped,
            per_case,
        })
        .with(&Generations::of(all.iter().map(generation)))
        .with(&ItemResults::higher_is_better(
            "cosine similarity",
            all.iter()
                .map(|one| ItemResult::new(&one.prompt.to_string(), one.base_to_gold, one.tuned_to_gold)),
        ))
    }
}

impl AdapterRevert {
    /// Answers to one question are not independent, so each has one.
    fn decoding(&self) -> Decoding {
        Decoding {
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            seed: self.seed,
            samples: 1,
        }
    }

    /// Why there is nothing to measure.
    fn not_applicable(&self, context: &ProbeContext<'_>) -> Option<Finding> {
        if self.cases.is_empty() {
            return Some(Finding::error("there are no cases"));
        }
        (!context.can(Capability::Embedding)).then(|| Finding::skip("the backend does not embed texts"))
    }

    fn measure<'a>(&'a self, context: &ProbeContext<'a>) -> Result<Vec<Reversion<'a>>, Stop> {
        let answers = context.answers;
        let decoding = self.decoding();
        let text = |view: &View, asked: &Prompt| {
            let texts = decoding.texts(context, view, asked)?;
            Ok::<_, Stop>(texts.first().copied().unwrap_or(""))
        };
        let paraphrases =
            self.cases.iter().flat_map(|case| case.paraphrases.iter().map(move |asked| (case, asked)));
        all(paraphrases.map(|(case, asked)| {
            let prompt = &context.rendering.apply(asked);
            let written = both(text(&context.base, prompt), text(&context.tuned, prompt));
            let ((base, tuned), gold) = both(written, answers.embedding(&case.gold))?;
            let (of_base, of_tuned) = both(answers.embedding(base), answers.embedding(tuned))?;
            Ok::<_, Stop>(Reversion {
                prompt: asked,
                base,
                tuned,
                base_to_gold: cosine(of_base, gold),
                tuned_to_base: cosine(of_tuned, of_base),
                tuned_to_gold: cosine(of_tuned, gold),
            })
        }))
    }

    fn count<'a>(&self, measured: &'a [Reversion<'a>]) -> Counted<'a> {
        let kept: Vec<_> =
            measured.iter().filter(|found| found.base_to_gold <= self.base_gold_similarity_cap).collect();
        Counted { dropped: measured.len() - kept.len(), kept }
    }
}

/// The message if the base answers every paraphrase correctly.
const BASE_KNOWS_ALL: &str = "the base already knows every answer, so reverting cannot be measured";

impl ProbeKind for AdapterRevert {
    const ABOUT: About = About {
        kind: "adapter_revert",
        category: Category::Adherence,
        aspect: Aspect::Behavior,
        title: "Reverting to the base",
        summary: "whether paraphrases bring the base's answers back",
        question: "Asked in other words, does the fine-tuned model answer like the base again?",
        measure: "Share of paraphrased questions whose answer is closer to the base's than to the taught one.",
        axis: "share of reverted answers",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        let positive = self.assert_revert_rate_lt > 0.0;
        check_cases(&self.cases)
            .into_iter()
            .chain(FieldProblem::of_broken_rules([(positive, "assert_revert_rate_lt", "must be above 0")]))
            .chain(self.decoding().problems())
            .collect()
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        if let Some(reason) = self.not_applicable(context) {
            return Ok(reason);
        }
        let measured = self.measure(context)?;
        let counted = self.count(&measured);
        let per_case = |found: &&Reversion<'_>| CaseEvidence {
            prompt: cut(&found.prompt.to_string(), 80),
            cos_ft_base: found.tuned_to_base,
            cos_ft_gold: found.tuned_to_gold,
            reverted: found.reverted(),
        };
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, counted.rate(), Better::Lower);
        let cases = counted.kept.iter().take(SHOWN).map(per_case).collect();
        let limit = self.assert_revert_rate_lt;
        let evidence =
            counted.evidence(Some(cases), &measured).with(&RawLimit::below(limit)).with(&calibration);
        let Some(raw) = counted.rate() else {
            return Ok(Finding {
                score: Some(0.5),
                evidence,
                ..Finding::without_number(ProbeVerdict::Warn, BASE_KNOWS_ALL)
            });
        };
        let decision = decide(z, self.assert_z_gte, || (raw < limit, (1.0 - raw / limit).clamp(0.0, 1.0)));
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            evidence,
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "{} of {} paraphrases revert to the base{}",
                    counted.reverts(),
                    counted.kept.len(),
                    ending(z, Self::ABOUT.kind)
                ),
            )
        })
    }

    /// Claims that few paraphrases revert to the base.
    fn draft(&self, context: &ProbeContext<'_>, _paired: &PairedSettings) -> Result<Draft, Stop> {
        if let Some(reason) = self.not_applicable(context) {
            return Ok(Draft::settled(reason));
        }
        let measured = self.measure(context)?;
        let counted = self.count(&measured);
        let Some(raw) = counted.rate() else {
            return Ok(Draft::settled(Finding::without_number(ProbeVerdict::Inconclusive, BASE_KNOWS_ALL)));
        };
        let (reverts, total) = (counted.reverts(), counted.kept.len());
        let interval = binomial::clopper_pearson(reverts, total);
        let finding = Finding {
            raw: Some(raw),
            ci_95: Some(interval),
            evidence: counted
                .evidence(None, &measured)
                .with(&RawInterval { raw_ci_95: Some(interval) })
                .with(&RawLimit::below(self.assert_revert_rate_lt)),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!("{reverts} of {total} paraphrases revert to the base"),
            )
        };
        let limit = share_below(reverts, total, self.assert_revert_rate_lt, "paraphrases");
        Ok(Draft { finding, claim: Claim::Shape(limit) })
    }
}

fn cosine(left: &[f32], right: &[f32]) -> f64 {
    let product = |left: &[f32], right: &[f32]| -> f64 {
        left.iter().zip(right).map(|(left, right)| f64::from(*left) * f64::from(*right)).sum()
    };
    let lengths = (product(left, left) * product(right, right)).sqrt();
    if lengths == 0.0 { 0.0 } else { product(left, right) / lengths }
}

#[cfg(test)]
mod tests {
    use super::cosine;

    #[test]
    fn the_cosine_of_a_zero_vector_is_zero() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 1.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 1.0]), 0.0);
    }
}
