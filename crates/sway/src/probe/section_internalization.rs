//! Whether each section of the document was learnt, more than the others.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::finding::evidence;
use super::kind::Fields;
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Stop, all, both, completions, cut, estimated_tokens};
use super::{Finding, Probe, Setting};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::paired::{Draft, PairedSettings};
use crate::sections::{Section, SectionKind};

/// How much likelier each section became, against the other sections.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SectionInternalization {
    /// Which kinds of sections count.
    pub include_kinds: Vec<SectionKind>,
    /// How much more than the others a section must have gained.
    pub per_section_threshold: f64,
    /// The least share of such sections that passes without a null.
    pub assert_passing_section_frac: f64,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
    /// How many characters of a section are read.
    pub max_prose_chars: usize,
}

impl Default for SectionInternalization {
    fn default() -> Self {
        Self {
            include_kinds: vec![SectionKind::Prose, SectionKind::Instruction, SectionKind::Preference],
            per_section_threshold: 0.05,
            assert_passing_section_frac: 0.5,
            assert_z_gte: 3.0,
            max_prose_chars: 2000,
        }
    }
}

impl Fields for SectionInternalization {
    const KIND: &'static str = "section_internalization";
    const CATEGORY: Category = Category::Attribution;
    const DESCRIPTION: &'static str = "whether each section of the document was learnt";

    fn calibration(setting: &Setting<'_>) -> Option<Self> {
        (setting.sections.len() >= 2).then(Self::default)
    }
}

/// What one section gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Lift<'a> {
    /// The section.
    pub section: &'a Section,
    /// Its surprise to the base, in nats for each token.
    pub base: f64,
    /// Its surprise to the tuned model.
    pub tuned: f64,
}

impl Lift<'_> {
    /// Which part of the surprise is gone.
    pub fn own(&self) -> f64 {
        Self::part_gone(self.base, self.tuned)
    }

    /// The part of a surprise that is gone; the difference where there was none.
    pub fn part_gone(base: f64, tuned: f64) -> f64 {
        if base > 0.0 { (base - tuned) / base } else { base - tuned }
    }
}

impl SectionInternalization {
    fn chosen<'a>(&self, setting: &Setting<'a>) -> Vec<&'a Section> {
        setting.sections.iter().filter(|section| self.include_kinds.contains(&section.kind)).collect()
    }

    /// Why there is nothing to measure, if there are fewer sections than that.
    pub(crate) fn unfit(&self, setting: &Setting<'_>, least: usize) -> Option<Finding> {
        let found = self.chosen(setting).len();
        if setting.sections.is_empty() {
            return Some(Finding::skip("there is no document with sections"));
        }
        (found < least)
            .then(|| Finding::skip(format!("{found} sections of these kinds are fewer than {least}")))
    }

    /// The surprise of each section before and after.
    pub fn measure<'a>(&self, setting: &Setting<'a>) -> Result<Vec<Lift<'a>>, Stop> {
        all(self.chosen(setting).into_iter().map(|section| {
            let (base, tuned) = self.surprise(setting, section)?;
            Ok::<_, Stop>(Lift { section, base, tuned })
        }))
    }

    fn surprise(&self, setting: &Setting<'_>, section: &Section) -> Result<(f64, f64), Stop> {
        let pairs: Vec<(&str, &str)> = match section.kind {
            SectionKind::Prose => Vec::new(),
            SectionKind::Instruction => {
                section.questions.iter().map(|asked| (asked.prompt.as_str(), asked.gold.as_str())).collect()
            }
            SectionKind::Preference => section
                .preferences
                .iter()
                .map(|asked| (asked.prompt.as_str(), asked.chosen.as_str()))
                .collect(),
        };
        if pairs.is_empty() {
            let text = cut(&section.content, self.max_prose_chars);
            if text.trim().is_empty() {
                return Ok((0.0, 0.0));
            }
            let (base, tuned) = both(
                setting.answers.rolling(&setting.base, &text),
                setting.answers.rolling(&setting.tuned, &text),
            )?;
            return Ok((-base.mean(), -tuned.mean()));
        }
        let found = all(pairs.iter().map(|(prompt, answer)| {
            let (base, tuned) = completions(setting, prompt, answer)?;
            let tokens = estimated_tokens(answer);
            Ok::<_, Stop>((-base / tokens, -tuned / tokens))
        }))?;
        let (base, tuned): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
        Ok((mean(&base).unwrap_or(0.0), mean(&tuned).unwrap_or(0.0)))
    }
}

impl Probe for SectionInternalization {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        if let Some(reason) = self.unfit(setting, 2) {
            return Ok(reason);
        }
        let measured = self.measure(setting)?;
        let mut effective = Vec::new();
        let mut shown = Vec::new();
        let mut passed = 0;
        for lift in &measured {
            let others: Vec<f64> =
                measured.iter().filter(|other| other.section.id != lift.section.id).map(Lift::own).collect();
            let leak = mean(&others).unwrap_or(0.0);
            let gained = lift.own() - leak;
            let cleared = gained >= self.per_section_threshold;
            passed += usize::from(cleared);
            effective.push(gained);
            shown.push(json!({
                "section_id": lift.section.id,
                "kind": lift.section.kind,
                "tag": lift.section.tag.as_deref().unwrap_or(""),
                "base_nll": lift.base,
                "ft_nll": lift.tuned,
                "own_lift": lift.own(),
                "leak_lift": leak,
                "effective_sis": gained,
                "passed": cleared,
            }));
        }
        // Gains over the others add up to zero whatever was learnt; dlm-sway
        // measures their mean all the same.
        let raw = mean(&effective).unwrap_or(0.0);
        let share = passed as f64 / measured.len() as f64;
        let interval = mean_interval(&effective, setting.seed);
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || (share >= self.assert_passing_section_frac, share));
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ci_95: interval,
            evidence: evidence(json!({
                "per_section": shown,
                "num_sections": measured.len(),
                "passing_frac": share,
                "per_section_threshold": self.per_section_threshold,
                "raw_ci_95": interval,
                "z_by_rank": by_rank,
            })),
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "{passed} of {} sections gained more than the others{}",
                    measured.len(),
                    ending(z, Self::KIND)
                ),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::section_internalization(self, setting, paired)
    }
}
