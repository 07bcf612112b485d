//! `style_fingerprint`: whether the style moved towards the document's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::decoding::Decoding;
use super::lookup::{all, both};
use super::{
    About, Evidence, FieldProblem, Finding, Generation, Generations, ItemResult, ItemResults, ProbeContext,
    ProbeKind, RawInterval, RawLimit, Stop,
};
use crate::category::Category;
use crate::numbers::student_t::TTest;
use crate::numbers::style::{fingerprint, shift};
use crate::paired::{Claim, Draft, PairedSettings, mean_above};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::verdict::Aspect;

/// Whether to add grammatical features to those of words and punctuation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Extended {
    /// If available; they are not.
    #[default]
    Auto,
    /// Required; the probe is skipped because they are not available.
    On,
    /// Never.
    Off,
}

/// How far the style moved from the base's towards the document's.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StyleFingerprint {
    /// Prompts after which both models generate.
    pub prompts: Vec<Prompt>,
    /// A text in the wanted style; by default the document.
    pub doc_reference: String,
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
    /// Lowest share of the way that passes without noise to compare with.
    pub assert_shift_gte: f64,
    /// Lowest z-score against noise that passes.
    pub assert_z_gte: f64,
    /// Whether to add grammatical features.
    pub extended: Extended,
}

impl Default for StyleFingerprint {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            doc_reference: String::new(),
            max_new_tokens: 128,
            temperature: 0.0,
            top_p: 1.0,
            seed: None,
            samples: 1,
            assert_shift_gte: 0.25,
            assert_z_gte: 3.0,
            extended: Extended::Auto,
        }
    }
}

/// Evidence of [`StyleFingerprint`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct StyleEvidence {
    base_fp: Vec<f64>,
    ft_fp: Vec<f64>,
    doc_fp: Vec<f64>,
    style_shift: f64,
    extended: bool,
    schema_version: u64,
}

/// What both models generated, prompt by prompt. The samples of a prompt are one
/// text.
#[derive(Clone, Debug, PartialEq)]
struct Texts {
    base: Vec<String>,
    tuned: Vec<String>,
}

impl Texts {
    fn fingerprints(&self, left_out: Option<usize>) -> [Vec<f64>; 2] {
        [&self.base, &self.tuned].map(|texts| {
            let kept = texts.iter().enumerate().filter(|(index, _)| Some(*index) != left_out);
            fingerprint(&kept.map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n")).to_vec()
        })
    }

    /// How far the style moved, without one of the texts.
    fn shift(&self, document: &[f64], left_out: Option<usize>) -> f64 {
        let [base, tuned] = self.fingerprints(left_out);
        shift(&base, &tuned, document)
    }

    /// What each text contributes to the shift, by a jackknife.
    fn pseudo_values(&self, document: &[f64]) -> Vec<f64> {
        let (count, raw) = (self.tuned.len(), self.shift(document, None));
        if count < 2 {
            return vec![raw];
        }
        let pseudo = |index| count as f64 * raw - (count - 1) as f64 * self.shift(document, Some(index));
        (0..count).map(pseudo).collect()
    }
}

impl StyleFingerprint {
    /// The base is at 0 of the way to the document's style.
    fn results(&self, pseudo_values: &[f64]) -> ItemResults {
        let item = |(prompt, value): (&Prompt, &f64)| ItemResult::new(&prompt.to_string(), 0.0, *value);
        ItemResults::higher_is_better("share of the way", self.prompts.iter().zip(pseudo_values).map(item))
    }

    fn decoding(&self) -> Decoding {
        Decoding {
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            seed: self.seed,
            samples: self.samples,
        }
    }

    fn measure(&self, context: &ProbeContext<'_>) -> Result<Texts, Stop> {
        let decoding = self.decoding();
        let generated = all(self.prompts.iter().map(|prompt| {
            let prompt = &context.rendering.apply(prompt);
            both(
                decoding.texts(context, &context.base, prompt).map(|texts| texts.join("\n")),
                decoding.texts(context, &context.tuned, prompt).map(|texts| texts.join("\n")),
            )
        }))?;
        let (base, tuned) = generated.into_iter().unzip();
        Ok(Texts { base, tuned })
    }

    /// The text in the wanted style, or why there is nothing to measure.
    fn wanted<'a>(&'a self, context: &ProbeContext<'a>) -> Result<&'a str, Finding> {
        if self.prompts.is_empty() {
            return Err(Finding::error("there are no prompts"));
        }
        let given = (!self.doc_reference.is_empty()).then_some(self.doc_reference.as_str());
        let Some(text) = given.or(context.document).filter(|text| !text.trim().is_empty()) else {
            return Err(Finding::skip("no document to compare the style with"));
        };
        if self.extended == Extended::On {
            return Err(Finding::skip("grammatical features are not available"));
        }
        Ok(text)
    }

    fn evidence(&self, texts: &Texts, fingerprints: [&[f64]; 3], style_shift: f64) -> Evidence {
        let [base_fp, ft_fp, doc_fp] = fingerprints.map(<[f64]>::to_vec);
        let pairs = self.prompts.iter().zip(texts.base.iter().zip(&texts.tuned));
        let generation = |(prompt, (base, tuned)): (&Prompt, (&String, &String))| Generation {
            prompt: prompt.to_string(),
            base: base.clone(),
            tuned: tuned.clone(),
        };
        Evidence::of(&StyleEvidence {
            base_fp,
            ft_fp,
            doc_fp,
            style_shift,
            extended: false,
            schema_version: 2,
        })
        .with(&Generations::of(pairs.map(generation)))
    }
}

impl ProbeKind for StyleFingerprint {
    const ABOUT: About = About {
        kind: "style_fingerprint",
        category: Category::Calibration,
        aspect: Aspect::Behavior,
        title: "Style",
        summary: "whether the style moved towards the document's",
        question: "Does the fine-tuned model write more like the document?",
        measure: "How far the style moved from the base's towards the document's. 1 means all the way.",
        axis: "share of the way to the document's style",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        self.decoding().problems()
    }

    fn on_noise(context: &ProbeContext<'_>) -> Option<Self> {
        Some(Self {
            prompts: context.packs.sentinel_prompts.iter().map(Prompt::from).collect(),
            doc_reference: context.packs.sentinel_doc.clone(),
            max_new_tokens: 64,
            ..Self::default()
        })
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        let wanted = match self.wanted(context) {
            Ok(wanted) => wanted,
            Err(reason) => return Ok(reason),
        };
        let texts = self.measure(context)?;
        if texts.tuned.iter().all(|text| text.trim().is_empty()) {
            return Ok(Finding::error("the fine-tuned model generated no text"));
        }
        let [base, tuned] = texts.fingerprints(None);
        let document = fingerprint(wanted);
        if tuned.iter().all(|number| number.abs() < 1e-12) {
            return Ok(Finding::error("the fine-tuned model generated no words"));
        }
        let raw = shift(&base, &tuned, &document);
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || (raw >= self.assert_shift_gte, raw.clamp(0.0, 1.0)));
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            evidence: self
                .evidence(&texts, [&base, &tuned, &document], raw)
                .with(&RawLimit::above(self.assert_shift_gte))
                .with(&self.results(&texts.pseudo_values(&document)))
                .with(&calibration),
            ..Finding::without_number(
                decision.verdict,
                format!("the style moved {raw:+.2} of the way{}", ending(z, Self::ABOUT.kind)),
            )
        })
    }

    /// Claims that the style moved towards the document's, by a jackknife over
    /// prompts.
    fn draft(&self, context: &ProbeContext<'_>, _paired: &PairedSettings) -> Result<Draft, Stop> {
        let document = match self.wanted(context) {
            Ok(wanted) => fingerprint(wanted),
            Err(reason) => return Ok(Draft::settled(reason)),
        };
        let texts = self.measure(context)?;
        if texts.tuned.iter().all(|text| text.trim().is_empty()) {
            return Ok(Draft::settled(Finding::error("the fine-tuned model generated no text")));
        }
        let raw = texts.shift(&document, None);
        let pseudo_values = texts.pseudo_values(&document);
        let interval = TTest::of(&pseudo_values).map(|test| test.confidence_interval());
        let [base, tuned] = texts.fingerprints(None);
        let finding = Finding {
            raw: Some(raw),
            ci_95: interval,
            evidence: self
                .evidence(&texts, [&base, &tuned, &document], raw)
                .with(&RawInterval { raw_ci_95: interval })
                .with(&RawLimit::above(0.0))
                .with(&self.results(&pseudo_values)),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!("the style moved {raw:+.2} of the way to the document's"),
            )
        };
        let limit = mean_above(&pseudo_values, 0.0, "prompts").with_bound("above 0 wanted");
        Ok(Draft { finding, claim: Claim::Shape(limit) })
    }
}
