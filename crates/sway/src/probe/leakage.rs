//! `leakage`: whether the fine-tuned model recites the document.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::decoding::Decoding;
use super::lookup::{all, both};
use super::perturbation::Perturbation;
use super::{
    About, Evidence, FieldProblem, Finding, Generation, Generations, ItemResult, ItemResults, ProbeContext,
    ProbeKind, RawInterval, RawLimit, Stop,
};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::{mean, ratcliff_obershelp};
use crate::paired::{Claim, Draft, PairedSettings, mean_above};
use crate::record::ProbeVerdict;
use crate::sections::Section;
use crate::verdict::Aspect;

/// How many sections the evidence shows.
const SHOWN: usize = 10;

/// How much of a section the model recites after its beginning, and how much
/// after a slightly changed beginning.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Leakage {
    /// Characters of a section given as the prompt.
    pub prefix_chars: usize,
    /// Characters after the prompt that the answer is compared with.
    pub continuation_chars: usize,
    /// Longest answer, in tokens.
    pub max_new_tokens: usize,
    /// Temperature of sampling; 0 takes the most likely token.
    pub temperature: f64,
    /// Sample from the most likely tokens with this total probability.
    pub top_p: f64,
    /// Seed of sampling; by default that of the suite.
    pub seed: Option<u64>,
    /// Texts per prompt; more than 1 needs a temperature.
    pub samples: usize,
    /// Small changes applied to the prompt.
    pub perturbations: Vec<Perturbation>,
    /// Recall that fails without noise to compare with, unless it is fragile.
    pub assert_recall_lt: f64,
    /// Lowest share of the recall that a changed prompt must lose to count as
    /// fragile.
    pub min_fragility: f64,
    /// Lowest z-score against noise that passes.
    pub assert_z_gte: f64,
}

impl Default for Leakage {
    fn default() -> Self {
        Self {
            prefix_chars: 128,
            continuation_chars: 256,
            max_new_tokens: 96,
            temperature: 0.0,
            top_p: 1.0,
            seed: None,
            samples: 1,
            perturbations: Perturbation::ALL.to_vec(),
            assert_recall_lt: 0.5,
            min_fragility: 0.3,
            assert_z_gte: 3.0,
        }
    }
}

/// Evidence of [`Leakage`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct LeakageEvidence {
    mean_clean_recall: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_base_recall: Option<f64>,
    mean_perturbed_recall: f64,
    mean_fragility: f64,
    per_section: Vec<SectionEvidence>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct SectionEvidence {
    section_id: String,
    clean_recall: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_recall: Option<f64>,
    perturbed_recall: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fragility: Option<f64>,
}

/// How much of one section a model recites.
#[derive(Clone, Debug, PartialEq)]
struct Recall<'a> {
    section: &'a Section,
    prefix: String,
    written: &'a str,
    /// Similarity of the answer to the section, over all samples.
    clean: f64,
    /// The same after each changed prompt.
    perturbed: Vec<f64>,
}

impl Recall<'_> {
    fn mean_perturbed(&self) -> f64 {
        mean(&self.perturbed).unwrap_or(self.clean)
    }
}

/// The share of a recall that a changed prompt loses.
fn fragility(clean: f64, perturbed: f64) -> f64 {
    if clean > 0.0 { ((clean - perturbed) / clean).max(0.0) } else { 0.0 }
}

impl Leakage {
    fn decoding(&self) -> Decoding {
        Decoding {
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            seed: self.seed,
            samples: self.samples,
        }
    }

    /// Sections that are long enough, split into prompt and continuation.
    fn usable<'a>(&self, context: &ProbeContext<'a>) -> Vec<(&'a Section, String, String)> {
        let split = |section: &'a Section| {
            let mut rest = section.content.chars();
            let prefix: String = rest.by_ref().take(self.prefix_chars).collect();
            let target: String = rest.take(self.continuation_chars).collect();
            (section, prefix, target)
        };
        context
            .prose()
            .filter(|section| !section.content.trim().is_empty())
            .map(split)
            .filter(|(_, prefix, target)| !prefix.is_empty() && !target.trim().is_empty())
            .collect()
    }

    fn measure<'a>(&self, context: &ProbeContext<'a>) -> Result<Vec<Recall<'a>>, Stop> {
        all(self.usable(context).into_iter().map(|(section, prefix, target)| {
            let recall = |prompt: &str| {
                let texts = self.decoding().texts(context, &context.tuned, &prompt.into())?;
                let similar: Vec<f64> = texts.iter().map(|text| ratcliff_obershelp(text, &target)).collect();
                Ok::<_, Stop>((texts.first().copied().unwrap_or(""), mean(&similar).unwrap_or(0.0)))
            };
            let changed = self.perturbations.iter().map(|change| change.apply(&prefix, context.packs));
            let changed = changed.map(|prompt| recall(&prompt).map(|(_, similarity)| similarity));
            let ((written, clean), perturbed) = both(recall(&prefix), all(changed))?;
            Ok::<_, Stop>(Recall { section, prefix, written, clean, perturbed })
        }))
    }

    /// What the base recites. Only the fine-tuned model needs changed prompts.
    fn measure_base<'a>(&self, context: &ProbeContext<'a>) -> Result<Vec<Recall<'a>>, Stop> {
        let of_base = ProbeContext { tuned: context.base.clone(), ..context.clone() };
        Self { perturbations: Vec::new(), ..self.clone() }.measure(&of_base)
    }
}

/// Recall of each section by the base and the fine-tuned model.
fn results(recalls: &[Recall<'_>], base: &[Recall<'_>]) -> ItemResults {
    let item = |(tuned, base): (&Recall<'_>, &Recall<'_>)| {
        ItemResult::new(&format!("{}: {}", tuned.section.id, tuned.prefix), base.clean, tuned.clean)
    };
    ItemResults::lower_is_better("share recited", recalls.iter().zip(base).map(item))
}

impl ProbeKind for Leakage {
    const ABOUT: About = About {
        kind: "leakage",
        category: Category::Calibration,
        aspect: Aspect::Memorization,
        title: "Recitation",
        summary: "whether the model recites the document",
        question: "Does the fine-tuned model recite the document word for word?",
        measure: "How much of a section the model continues correctly when given its beginning.",
        axis: "share of the document recited",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        let mut problems = FieldProblem::of_broken_rules([
            (self.assert_recall_lt > 0.0, "assert_recall_lt", "must be above 0"),
            (self.min_fragility > 0.0, "min_fragility", "must be above 0"),
        ]);
        problems.extend(self.decoding().problems());
        problems
    }

    fn on_noise(context: &ProbeContext<'_>) -> Option<Self> {
        let any = context.prose().next().is_some();
        any.then(|| Self { prefix_chars: 64, continuation_chars: 128, max_new_tokens: 48, ..Self::default() })
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        // dlm-sway does not ask the base, so the base need not answer.
        let of_base = match self.measure_base(context) {
            Err(Stop::Failed(_)) => Ok(None),
            found => found.map(Some),
        };
        let (recalls, of_base) = both(self.measure(context), of_base)?;
        let clean: Vec<f64> = recalls.iter().map(|recall| recall.clean).collect();
        let perturbed: Vec<f64> = recalls.iter().map(Recall::mean_perturbed).collect();
        let (Some(raw), Some(changed)) = (mean(&clean), mean(&perturbed)) else {
            return Ok(Finding::skip("no prose section is long enough"));
        };
        let lost = fragility(raw, changed);
        let interval = mean_interval(&clean, context.seed);
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Lower);
        let decision = decide(z, self.assert_z_gte, || {
            let passed = raw < self.assert_recall_lt || lost >= self.min_fragility;
            let kept = (1.0 - raw / self.assert_recall_lt).clamp(0.0, 1.0);
            (passed, 0.7 * kept + 0.3 * (lost / self.min_fragility).clamp(0.0, 1.0))
        });
        let section = |recall: &Recall<'_>| SectionEvidence {
            section_id: recall.section.id.clone(),
            clean_recall: recall.clean,
            base_recall: None,
            perturbed_recall: recall.mean_perturbed(),
            fragility: Some(fragility(recall.clean, recall.mean_perturbed())),
        };
        let mut evidence = Evidence::of(&LeakageEvidence {
            mean_clean_recall: raw,
            mean_base_recall: None,
            mean_perturbed_recall: changed,
            mean_fragility: lost,
            per_section: recalls.iter().take(SHOWN).map(section).collect(),
        });
        if let Some(of_base) = of_base {
            evidence.add(&results(&recalls, &of_base));
        }
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ft_value: Some(lost),
            ci_95: interval,
            evidence: evidence
                .with(&RawInterval { raw_ci_95: interval })
                .with(&RawLimit::below(self.assert_recall_lt))
                .with(&calibration),
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "{raw:.2} of the continuation is recited, {changed:.2} after changed prompts{}",
                    ending(z, Self::ABOUT.kind)
                ),
            )
        })
    }

    /// Claims that little of the document is recited. What the base recites as
    /// well was not learned from fine-tuning, and does not count.
    fn draft(&self, context: &ProbeContext<'_>, _paired: &PairedSettings) -> Result<Draft, Stop> {
        let (recalls, base_recalls) = both(self.measure(context), self.measure_base(context))?;
        let clean: Vec<f64> = recalls.iter().map(|recall| recall.clean).collect();
        let base: Vec<f64> = base_recalls.iter().map(|recall| recall.clean).collect();
        let Some(raw) = mean(&clean) else {
            return Ok(Draft::settled(Finding::skip("no prose section is long enough")));
        };
        let changed: Vec<f64> = recalls.iter().map(Recall::mean_perturbed).collect();
        let perturbed = mean(&changed).unwrap_or(raw);
        let interval = mean_interval(&clean, context.seed);
        let section = |(recall, base): (&Recall<'_>, &f64)| SectionEvidence {
            section_id: recall.section.id.clone(),
            clean_recall: recall.clean,
            base_recall: Some(*base),
            perturbed_recall: recall.mean_perturbed(),
            fragility: None,
        };
        let generation = |(tuned, base): (&Recall<'_>, &Recall<'_>)| Generation {
            prompt: tuned.prefix.clone(),
            base: base.written.to_owned(),
            tuned: tuned.written.to_owned(),
        };
        let evidence = Evidence::of(&LeakageEvidence {
            mean_clean_recall: raw,
            mean_base_recall: mean(&base),
            mean_perturbed_recall: perturbed,
            mean_fragility: fragility(raw, perturbed),
            per_section: recalls.iter().zip(&base).take(SHOWN).map(section).collect(),
        })
        .with(&RawInterval { raw_ci_95: interval })
        .with(&RawLimit::below(self.assert_recall_lt + mean(&base).unwrap_or(0.0)))
        .with(&results(&recalls, &base_recalls))
        .with(&Generations::of(recalls.iter().zip(&base_recalls).map(generation)));
        let finding = Finding {
            raw: Some(raw),
            base_value: mean(&base),
            ft_value: Some(fragility(raw, perturbed)),
            ci_95: interval,
            evidence,
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!(
                    "recites {:.0} % of continuations, the base {:.0} %",
                    100.0 * raw,
                    100.0 * mean(&base).unwrap_or(0.0)
                ),
            )
        };
        let more = 100.0 * self.assert_recall_lt;
        let margin: Vec<f64> = clean
            .iter()
            .zip(&base)
            .map(|(clean, base)| self.assert_recall_lt - (clean - base).max(0.0))
            .collect();
        let limit = mean_above(&margin, 0.0, "sections").with_bound(format!("limit {more:.0} % more"));
        Ok(Draft { finding, claim: Claim::Limit(limit) })
    }
}
