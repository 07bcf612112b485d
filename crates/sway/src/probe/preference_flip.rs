//! `preference_flip`: whether taught preferences hold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::kind::from_pack;
use super::lookup::{ProbeError, all, both, completions};
use super::{
    About, Evidence, Finding, ItemResult, ItemResults, ProbeContext, ProbeKind, RawInterval, RawLimit, Stop,
    Triple,
};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::numbers::sign_flip_test::sign_flip_test;
use crate::paired::{Change, Claim, Draft, EffectUnit, PairedSettings, Tail};
use crate::record::ProbeVerdict;
use crate::sections::SectionKind;
use crate::verdict::Aspect;

/// How many reasons the evidence shows.
const SHOWN: usize = 5;

/// The share of the base's wrong preferences that became right.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PreferenceFlip {
    /// Preferences; by default those of the document's preference sections.
    pub triples: Vec<Triple>,
    /// Lowest share that passes without noise to compare with.
    pub assert_flip_rate_gte: f64,
    /// Fewest wrong preferences of the base for a verdict.
    pub min_triples_for_decision: usize,
    /// Lowest z-score against noise that passes.
    pub assert_z_gte: f64,
}

impl Default for PreferenceFlip {
    fn default() -> Self {
        Self {
            triples: Vec::new(),
            assert_flip_rate_gte: 0.7,
            min_triples_for_decision: 3,
            assert_z_gte: 3.0,
        }
    }
}

/// Evidence of [`PreferenceFlip`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct PreferenceEvidence {
    base_wrong: usize,
    total: usize,
    dropped_triples: usize,
    dropped_reasons: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct FlipEvidence {
    flip_rate: Option<f64>,
    flipped: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct MarginEvidence {
    mean_margin_delta: f64,
}

/// How much more likely the better answer is than the worse one, in nats.
#[derive(Clone, Debug, PartialEq)]
struct Margin {
    /// The preference in words.
    item: String,
    base: f64,
    tuned: f64,
}

/// The margins of all preferences, and why some have none.
#[derive(Clone, Debug, Default, PartialEq)]
struct Margins {
    margins: Vec<Margin>,
    dropped: Vec<ProbeError>,
}

impl Margins {
    fn changes(&self) -> Vec<f64> {
        self.margins.iter().map(|margin| margin.tuned - margin.base).collect()
    }

    fn mean_of(&self, side: fn(&Margin) -> f64) -> Option<f64> {
        mean(&self.margins.iter().map(side).collect::<Vec<_>>())
    }

    /// Preferences that the base has wrong.
    fn wrong(&self) -> usize {
        self.margins.iter().filter(|margin| margin.base < 0.0).count()
    }

    /// Wrong preferences that the fine-tuned model has right.
    fn flipped(&self) -> usize {
        self.margins.iter().filter(|margin| margin.base < 0.0 && margin.tuned > 0.0).count()
    }

    fn reasons(&self) -> Vec<String> {
        self.dropped.iter().take(SHOWN).map(ToString::to_string).collect()
    }

    fn evidence(&self) -> Evidence {
        Evidence::of(&PreferenceEvidence {
            base_wrong: self.wrong(),
            total: self.margins.len(),
            dropped_triples: self.dropped.len(),
            dropped_reasons: self.reasons(),
        })
        .with(&ItemResults::higher_is_better(
            ItemResults::NATS,
            self.margins.iter().map(|margin| ItemResult::new(&margin.item, margin.base, margin.tuned)),
        ))
    }

    /// Why there is nothing to judge.
    fn not_applicable(&self) -> Option<Finding> {
        match (self.margins.as_slice(), self.dropped.as_slice()) {
            ([], []) => Some(Finding::skip("there are no preferences")),
            ([], _) => {
                Some(Finding::error(format!("no preference could be scored: {}", self.reasons().join("; "))))
            }
            _ => None,
        }
    }
}

impl PreferenceFlip {
    fn chosen(&self, context: &ProbeContext<'_>) -> Vec<Triple> {
        if !self.triples.is_empty() {
            return self.triples.clone();
        }
        context
            .sections
            .iter()
            .filter(|section| section.kind == SectionKind::Preference)
            .flat_map(|section| &section.preferences)
            .map(|preference| Triple {
                prompt: preference.prompt.clone(),
                chosen: preference.chosen.clone(),
                rejected: preference.rejected.clone(),
            })
            .collect()
    }

    /// The margin of each preference. One that has no answer is dropped.
    fn measure(&self, context: &ProbeContext<'_>) -> Result<Margins, Stop> {
        let scores = self.chosen(context).into_iter().map(|triple| {
            let scored = both(
                completions(context, &triple.prompt, &triple.chosen),
                completions(context, &triple.prompt, &triple.rejected),
            );
            match scored {
                Ok((chosen, rejected)) => {
                    let Triple { prompt, chosen: better, rejected: worse } = &triple;
                    Ok(Ok(Margin {
                        item: format!("{prompt} → {}, not {}", better.trim(), worse.trim()),
                        base: chosen.0 - rejected.0,
                        tuned: chosen.1 - rejected.1,
                    }))
                }
                Err(Stop::Failed(error)) => Ok(Err(error)),
                Err(Stop::Pending) => Err(Stop::Pending),
            }
        });
        let mut found = Margins::default();
        for score in all(scores)? {
            match score {
                Ok(margin) => found.margins.push(margin),
                Err(error) => found.dropped.push(error),
            }
        }
        Ok(found)
    }
}

impl ProbeKind for PreferenceFlip {
    const ABOUT: About = About {
        kind: "preference_flip",
        category: Category::Attribution,
        aspect: Aspect::Learning,
        title: "Preferences",
        summary: "whether taught preferences hold",
        question: "Does the fine-tuned model prefer the better answer where the base did not?",
        measure: "Share of wrong preferences that became right, or the gain of the better answers.",
        axis: "gain of the better answers (nats)",
    };

    fn on_noise(context: &ProbeContext<'_>) -> Option<Self> {
        from_pack(&context.packs.preference_calibration)
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        let found = self.measure(context)?;
        if let Some(reason) = found.not_applicable() {
            return Ok(reason);
        }
        let (wrong, flipped) = (found.wrong(), found.flipped());
        let (base_value, ft_value) =
            (found.mean_of(|margin| margin.base), found.mean_of(|margin| margin.tuned));
        if wrong < self.min_triples_for_decision {
            let changes = found.changes();
            let raw = mean(&changes).unwrap_or(0.0);
            let interval = mean_interval(&changes, context.seed);
            let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Higher);
            return Ok(Finding {
                score: Some((0.5 + raw / 4.0).clamp(0.0, 1.0)),
                raw: Some(raw),
                z_score: z,
                base_value,
                ft_value,
                ci_95: interval,
                evidence: found
                    .evidence()
                    .with(&MarginEvidence { mean_margin_delta: raw })
                    .with(&RawInterval { raw_ci_95: interval })
                    .with(&calibration),
                ..Finding::without_number(
                    ProbeVerdict::Warn,
                    format!(
                        "the base has {wrong} wrong preferences, fewer than the {} a verdict needs; margins moved by {raw:+.3} nats",
                        self.min_triples_for_decision
                    ),
                )
            });
        }
        // A minimum of zero permits a base without a wrong preference.
        let raw = if wrong == 0 { 0.0 } else { flipped as f64 / wrong as f64 };
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Higher);
        let limit = self.assert_flip_rate_gte;
        let decision = decide(z, self.assert_z_gte, || {
            (raw >= limit, if limit > 0.0 { (raw / limit).min(1.0) } else { 1.0 })
        });
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            base_value,
            ft_value,
            evidence: found
                .evidence()
                .with(&FlipEvidence { flip_rate: Some(raw), flipped })
                .with(&RawLimit::above(limit))
                .with(&calibration),
            ..Finding::without_number(
                decision.verdict,
                format!("{flipped} of {wrong} wrong preferences became right{}", ending(z, Self::ABOUT.kind)),
            )
        })
    }

    /// Claims that better answers gained more than under noise. dlm-sway mixes
    /// shares and margins; this judges the margin throughout.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        let (found, nulls) = paired.measure_with_noise(context, |context| self.measure(context))?;
        if let Some(reason) = found.not_applicable() {
            return Ok(Draft::settled(reason));
        }
        let changes = found.changes();
        let raw = mean(&changes).unwrap_or(0.0);
        let interval = mean_interval(&changes, context.seed);
        let (wrong, flipped) = (found.wrong(), found.flipped());
        let flip_rate = (wrong > 0).then(|| flipped as f64 / wrong as f64);
        let finding = Finding {
            raw: Some(raw),
            base_value: found.mean_of(|margin| margin.base),
            ft_value: found.mean_of(|margin| margin.tuned),
            ci_95: interval,
            evidence: found
                .evidence()
                .with(&FlipEvidence { flip_rate, flipped })
                .with(&MarginEvidence { mean_margin_delta: raw })
                .with(&RawInterval { raw_ci_95: interval })
                .with(&RawLimit::above(0.0)),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!(
                    "better answers gained {raw:+.3} nats over worse ones; {flipped} of {wrong} wrong preferences became right"
                ),
            )
        };
        let change = Change {
            observed: raw,
            nulls: nulls.iter().filter_map(|null| mean(&null.changes())).collect(),
            tail: Tail::Gain,
            absent: ProbeVerdict::Fail,
            fallback_p: Some(sign_flip_test(&changes, context.seed)),
            units: changes.len(),
            unit: "preferences",
            effect_unit: EffectUnit::Nats,
            decided: None,
        };
        Ok(Draft { finding, claim: Claim::Change(change) })
    }
}
