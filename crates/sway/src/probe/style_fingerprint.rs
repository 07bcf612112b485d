//! Whether the tuned model writes more like the document.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::finding::evidence;
use super::generations::{Pair, generations};
use super::kind::Fields;
use super::nulls::{Better, decide, deviations, ending};
use super::reading::{Stop, all, both};
use super::{Finding, Probe, Setting};
use crate::category::Category;
use crate::numbers::style::{fingerprint, shift};
use crate::paired::{Draft, PairedSettings};

/// Whether a grammar's numbers are added to those of words and marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Extended {
    /// If there is a grammar. There is none.
    #[default]
    Auto,
    /// They must be; the probe is skipped, as there is no grammar.
    On,
    /// They are not.
    Off,
}

/// How far the style went from the base's towards the document's.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StyleFingerprint {
    /// What the models are to write about.
    pub prompts: Vec<String>,
    /// A text in the wanted style; the document if nothing is said.
    pub doc_reference: String,
    /// How long texts may be.
    pub max_new_tokens: usize,
    /// The least part of the way that passes without a null.
    pub assert_shift_gte: f64,
    /// The least deviation from noise that passes.
    pub assert_z_gte: f64,
    /// Whether a grammar's numbers are added.
    pub extended: Extended,
}

impl Default for StyleFingerprint {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            doc_reference: String::new(),
            max_new_tokens: 128,
            assert_shift_gte: 0.25,
            assert_z_gte: 3.0,
            extended: Extended::Auto,
        }
    }
}

impl Fields for StyleFingerprint {
    const KIND: &'static str = "style_fingerprint";
    const CATEGORY: Category = Category::Calibration;
    const DESCRIPTION: &'static str = "whether the style moved towards the document's";

    fn calibration(setting: &Setting<'_>) -> Option<Self> {
        Some(Self {
            prompts: setting.packs.sentinel_prompts.clone(),
            doc_reference: setting.packs.sentinel_doc.clone(),
            max_new_tokens: 64,
            ..Self::default()
        })
    }
}

/// What both models wrote, for each prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Writings<'a> {
    /// The base.
    pub base: Vec<&'a str>,
    /// The tuned model.
    pub tuned: Vec<&'a str>,
}

impl StyleFingerprint {
    /// What both models write.
    pub fn measure<'a>(&self, setting: &Setting<'a>) -> Result<Writings<'a>, Stop> {
        let written = all(self.prompts.iter().map(|prompt| {
            both(
                setting.answers.generation(&setting.base, prompt, self.max_new_tokens),
                setting.answers.generation(&setting.tuned, prompt, self.max_new_tokens),
            )
        }))?;
        let (base, tuned) = written.into_iter().unzip();
        Ok(Writings { base, tuned })
    }

    /// What was written, for those who read a report.
    pub(crate) fn shown(&self, writings: &Writings<'_>) -> Value {
        let texts = writings.base.iter().zip(&writings.tuned);
        let pairs = self.prompts.iter().zip(texts);
        generations(pairs.map(|(prompt, (base, tuned))| Pair { prompt: prompt.clone(), base, tuned }))
    }

    /// The text whose style is wanted, or why there is nothing to measure.
    pub(crate) fn wanted<'a>(&'a self, setting: &Setting<'a>) -> Result<&'a str, Finding> {
        if self.prompts.is_empty() {
            return Err(Finding::error("no prompts are given"));
        }
        let given = (!self.doc_reference.is_empty()).then_some(self.doc_reference.as_str());
        let Some(text) = given.or(setting.document).filter(|text| !text.trim().is_empty()) else {
            return Err(Finding::skip("there is no document whose style is wanted"));
        };
        if self.extended == Extended::On {
            return Err(Finding::skip("the numbers of a grammar are not available"));
        }
        Ok(text)
    }
}

impl Probe for StyleFingerprint {
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop> {
        let wanted = match self.wanted(setting) {
            Ok(wanted) => wanted,
            Err(reason) => return Ok(reason),
        };
        let writings = self.measure(setting)?;
        if writings.tuned.iter().all(|text| text.trim().is_empty()) {
            return Ok(Finding::error("the tuned model wrote nothing"));
        }
        let base = fingerprint(&writings.base.join("\n"));
        let tuned = fingerprint(&writings.tuned.join("\n"));
        let document = fingerprint(wanted);
        if tuned.iter().all(|number| number.abs() < 1e-12) {
            return Ok(Finding::error("the tuned model wrote no words"));
        }
        let raw = shift(&base, &tuned, &document);
        let (z, by_rank) = deviations(setting, Self::KIND, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || (raw >= self.assert_shift_gte, raw.clamp(0.0, 1.0)));
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            evidence: evidence(json!({
                "base_fp": base,
                "ft_fp": tuned,
                "doc_fp": document,
                "style_shift": raw,
                "extended": false,
                "schema_version": 2,
                "z_by_rank": by_rank,
                "generations": self.shown(&writings),
            })),
            ..Finding::without_number(
                decision.verdict,
                format!("the style went {raw:+.2} of the way{}", ending(z, Self::KIND)),
            )
        })
    }

    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        crate::paired::style_fingerprint(self, setting, paired)
    }
}
