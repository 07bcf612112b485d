//! Whether the tuned model prefers what it was taught to prefer.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cases::Triple;
use super::finding::evidence;
use super::kind::{Fields, from_pack};
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{ProbeFault, Stop, all, both, completions};
use super::{Finding, Probe, Setting};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::paired::{Draft, PairedSettings};
use crate::record::Verdict;
use crate::sections::SectionKind;

/// How many reasons the evidence shows.
const SHOWN: usize = 5;

/// How many of the base's wrong choices became right.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PreferenceFlip {
    /// Choices; those of the document's preference sections if none is given.
    pub triples: Vec<Triple>,
    /// The least share that passes without a null.
    pub assert_flip_rate_gte: f64,
    /// With fewer wrong choices of the base there is no verdict.
    pub min_triples_for_decision: usize,
    /// The least deviation from noise that passes.
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

impl Fields for PreferenceFlip {
    const KIND: &'static str = "preference_flip";
    const CATEGORY: Category = Category::Attribution;
    const DESCRIPTION: &'static str = "whether taught preferences hold";

    fn calibration(setting: &Setting<'_>) -> Option<Self> {
        from_pack(&setting.packs.preference_calibration)
    }
}

/// How much likelier the better answer is than the worse one, in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// To the base.
    pub base: f64,
    /// To the tuned model.
    pub tuned: f64,
}

/// The choices that could be asked, and why others could not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Margins {
    /// Of those that could.
    pub margins: Vec<Margin>,
    /// Why others could not.
    pub dropped: Vec<ProbeFault>,
}

impl PreferenceFlip {
    fn chosen(&self, setting: &Setting<'_>) -> Vec<Triple> {
        if !self.triples.is_empty() {
            return self.triples.clone();
        }
        setting
            .sections
            .iter()
            .filter(|section| section.kind == SectionKind::Preference)
            .flat_map(|section| &section.preferences)
            .map(|asked| Triple {
                prompt: asked.prompt.clone(),
                chosen: asked.chosen.clone(),
                rejected: asked.rejected.clone(),
            })
            .collect()
    }

    /// The margin of each choice. One that has no answer is dropped.
    pub fn measure(&self, setting: &Setting<'_>) -> Result<Margins, Stop> {
        let read = self.chosen(setting).into_iter().map(|triple| {
            let read = both(
                completions(setting, &triple.prompt, &triple.chosen),
                completions(setting, &triple.prompt, &triple.rejected),
            );
            match read {
                Ok((chosen, rejected)) => {
                    Ok(Ok(Margin { base: chosen.0 - rejected.0, tuned: chosen.1 - rejected.1 }))
                }
                Err(Stop::Fault(fault)) => Ok(Err(fault)),
                Err(Stop::Yet) => Err(Stop::Yet),
            }
        });
        let mut found = Margins::default();
        for read in all(read)? {
            match read {
                Ok(margin) => found.margins.push(margin),
                Err(fault) => found.dropped.push(fault),
            }
        }
        Ok(found)
    }
}

impl Probe for PreferenceFlip {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        let Margins { margins, dropped } = self.measure(setting)?;
        if margins.is_empty() && dropped.is_empty() {
            return Ok(Finding::skip("there are no preferences to ask for"));
        }
        let reasons: Vec<String> = dropped.iter().take(SHOWN).map(ToString::to_string).collect();
        let side = |of: fn(&Margin) -> f64| mean(&margins.iter().map(of).collect::<Vec<_>>());
        let (Some(base), Some(tuned)) = (side(|margin| margin.base), side(|margin| margin.tuned)) else {
            return Ok(Finding::error(format!("no preference could be asked: {}", reasons.join("; "))));
        };
        let wrong = margins.iter().filter(|margin| margin.base < 0.0).count();
        let flipped = margins.iter().filter(|margin| margin.base < 0.0 && margin.tuned > 0.0).count();
        let mut found = evidence(json!({
            "base_wrong": wrong,
            "total": margins.len(),
            "dropped_triples": dropped.len(),
            "dropped_reasons": reasons,
        }));
        let mut say = |key: &str, value: Value| found.insert(key.to_owned(), value);
        let (base_value, ft_value) = (Some(base), Some(tuned));
        if wrong < self.min_triples_for_decision {
            let changes: Vec<f64> = margins.iter().map(|margin| margin.tuned - margin.base).collect();
            let raw = mean(&changes).unwrap_or(0.0);
            let interval = mean_interval(&changes, setting.seed);
            let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Higher);
            say("mean_margin_delta", raw.into());
            say("raw_ci_95", json!(interval));
            say("z_by_rank", by_rank);
            return Ok(Finding {
                score: Some((0.5 + raw / 4.0).clamp(0.0, 1.0)),
                raw: Some(raw),
                z_score: z,
                base_value,
                ft_value,
                ci_95: interval,
                evidence: found,
                ..Finding::without_number(
                    Verdict::Warn,
                    format!(
                        "the base chose wrongly {wrong} times, too few of {} for a verdict; margins moved by {raw:+.3} nats",
                        self.min_triples_for_decision
                    ),
                )
            });
        }
        // Without a wrong choice there is nothing to flip; a minimum of zero lets that through.
        let raw = if wrong == 0 { 0.0 } else { flipped as f64 / wrong as f64 };
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Higher);
        let limit = self.assert_flip_rate_gte;
        let decision = decide(z, self.assert_z_gte, || {
            (raw >= limit, if limit > 0.0 { (raw / limit).min(1.0) } else { 1.0 })
        });
        say("flip_rate", raw.into());
        say("flipped", flipped.into());
        say("z_by_rank", by_rank);
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            base_value,
            ft_value,
            evidence: found,
            ..Finding::without_number(
                decision.verdict,
                format!("{flipped} of {wrong} wrong choices became right{}", ending(z, Self::KIND)),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::preference_flip(self, setting, paired)
    }
}
