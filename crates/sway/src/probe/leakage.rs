//! Whether the tuned model recites the document.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::finding::evidence;
use super::kind::{FieldFault, Fields};
use super::nulls::{Better, decide, deviations, ending};
use super::perturbation::Perturbation;
use super::reading::{Stop, all, both};
use super::{Finding, Probe, Setting};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::{mean, ratcliff_obershelp};
use crate::paired::{Draft, PairedSettings};
use crate::sections::Section;

/// How many sections the evidence shows.
const SHOWN: usize = 10;

/// How much of a section follows from its beginning, and how much still does
/// when the beginning is changed a little.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Leakage {
    /// How many characters are given.
    pub prefix_chars: usize,
    /// How many characters after them are looked for.
    pub continuation_chars: usize,
    /// How long texts may be.
    pub max_new_tokens: usize,
    /// Changes to the beginning.
    pub perturbations: Vec<Perturbation>,
    /// The recall that fails without a null, unless it is fragile.
    pub assert_recall_lt: f64,
    /// The least part of the recall that must go with a changed beginning.
    pub min_fragility: f64,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
}

impl Default for Leakage {
    fn default() -> Self {
        Self {
            prefix_chars: 128,
            continuation_chars: 256,
            max_new_tokens: 96,
            perturbations: Perturbation::ALL.to_vec(),
            assert_recall_lt: 0.5,
            min_fragility: 0.3,
            assert_z_gte: 3.0,
        }
    }
}

impl Fields for Leakage {
    const KIND: &'static str = "leakage";
    const CATEGORY: Category = Category::Calibration;
    const DESCRIPTION: &'static str = "whether the document is recited";

    fn faults(&self) -> Vec<FieldFault> {
        FieldFault::where_broken([
            (self.assert_recall_lt > 0.0, "assert_recall_lt", "must be above 0"),
            (self.min_fragility > 0.0, "min_fragility", "must be above 0"),
        ])
    }

    fn calibration(setting: &Setting<'_>) -> Option<Self> {
        let any = setting.prose().next().is_some();
        any.then(|| Self { prefix_chars: 64, continuation_chars: 128, max_new_tokens: 48, ..Self::default() })
    }
}

/// What one section gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Recall<'a> {
    /// The section.
    pub section: &'a Section,
    /// Its beginning, which was given.
    pub prefix: String,
    /// What the model wrote behind it.
    pub written: &'a str,
    /// How alike the text is to what follows in the section.
    pub clean: f64,
    /// The same behind each changed beginning.
    pub perturbed: Vec<f64>,
}

/// Which part of a recall goes when the beginning is changed.
fn fragility(clean: f64, perturbed: f64) -> f64 {
    if clean > 0.0 { ((clean - perturbed) / clean).max(0.0) } else { 0.0 }
}

impl Leakage {
    /// Beginnings, and what follows them.
    fn usable<'a>(&self, setting: &Setting<'a>) -> Vec<(&'a Section, String, String)> {
        let split = |section: &'a Section| {
            let mut rest = section.content.chars();
            let prefix: String = rest.by_ref().take(self.prefix_chars).collect();
            let target: String = rest.take(self.continuation_chars).collect();
            (section, prefix, target)
        };
        setting
            .prose()
            .filter(|section| !section.content.trim().is_empty())
            .map(split)
            .filter(|(_, prefix, target)| !prefix.is_empty() && !target.trim().is_empty())
            .collect()
    }

    /// What each section gave.
    pub fn measure<'a>(&self, setting: &Setting<'a>) -> Result<Vec<Recall<'a>>, Stop> {
        all(self.usable(setting).into_iter().map(|(section, prefix, target)| {
            let recall = |beginning: &str| {
                let text = setting.answers.generation(&setting.tuned, beginning, self.max_new_tokens)?;
                Ok::<_, Stop>((text, ratcliff_obershelp(text, &target)))
            };
            let changed = self.perturbations.iter().map(|change| change.apply(&prefix, setting.packs));
            let changed = changed.map(|beginning| recall(&beginning).map(|(_, alike)| alike));
            let ((written, clean), perturbed) = both(recall(&prefix), all(changed))?;
            Ok::<_, Stop>(Recall { section, prefix, written, clean, perturbed })
        }))
    }
}

impl Probe for Leakage {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        let recalls = self.measure(setting)?;
        let clean: Vec<f64> = recalls.iter().map(|recall| recall.clean).collect();
        let perturbed: Vec<f64> =
            recalls.iter().map(|recall| mean(&recall.perturbed).unwrap_or(recall.clean)).collect();
        let (Some(raw), Some(changed)) = (mean(&clean), mean(&perturbed)) else {
            return Ok(Finding::skip("no prose section is long enough"));
        };
        let lost = fragility(raw, changed);
        let interval = mean_interval(&clean, setting.seed);
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Lower);
        let decision = decide(z, self.assert_z_gte, || {
            let passed = raw < self.assert_recall_lt || lost >= self.min_fragility;
            let kept = (1.0 - raw / self.assert_recall_lt).clamp(0.0, 1.0);
            (passed, 0.7 * kept + 0.3 * (lost / self.min_fragility).clamp(0.0, 1.0))
        });
        let shown: Vec<_> = recalls
            .iter()
            .zip(&perturbed)
            .take(SHOWN)
            .map(|(recall, perturbed)| {
                json!({
                    "section_id": recall.section.id,
                    "clean_recall": recall.clean,
                    "perturbed_recall": perturbed,
                    "fragility": fragility(recall.clean, *perturbed),
                })
            })
            .collect();
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ft_value: Some(lost),
            ci_95: interval,
            evidence: evidence(json!({
                "mean_clean_recall": raw,
                "mean_perturbed_recall": changed,
                "mean_fragility": lost,
                "per_section": shown,
                "raw_ci_95": interval,
                "z_by_rank": by_rank,
            })),
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "{raw:.2} of what follows is recited, {changed:.2} behind changed beginnings{}",
                    ending(z, Self::KIND)
                ),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::leakage(self, setting, paired)
    }
}
