//! `prompt_collapse`: whether the change fades after a long context.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::chart::{Chart, Shape};
use super::fading::Fading;
use super::lookup::{Comparison, all};
use super::{About, Evidence, FieldProblem, Finding, ProbeContext, ProbeKind, RawInterval, RawLimit, Stop};
use crate::backend::Capability;
use crate::category::Category;
use crate::chat::Rendering;
use crate::numbers::DivergenceKind;
use crate::paired::{Claim, Draft, PairedSettings};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::statistics::Statistics;
use crate::verdict::Aspect;

/// The number of tokens before the prompt after which the change is halved.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PromptCollapse {
    /// Prompts after which the next token is compared.
    pub prompts: Vec<Prompt>,
    /// Numbers of tokens before the prompt; at least two.
    pub context_lengths: Vec<i64>,
    /// The divergence.
    pub divergence: DivergenceKind,
    /// How many of the most likely tokens to compare; by default that of the
    /// suite.
    pub top_k: Option<usize>,
    /// Shortest half-life, in tokens, that passes without noise to compare with.
    pub assert_half_life_tokens: f64,
    /// Lowest z-score against noise that passes.
    pub assert_z_gte: f64,
    /// Fill contexts with a sentence even if the tokenizer has padding tokens.
    pub legacy_stuffing: bool,
}

impl Default for PromptCollapse {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            context_lengths: vec![0, 256, 512, 1024],
            divergence: DivergenceKind::Js,
            top_k: None,
            assert_half_life_tokens: 512.0,
            assert_z_gte: 3.0,
            legacy_stuffing: false,
        }
    }
}

/// Evidence of [`PromptCollapse`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct CollapseEvidence {
    context_lengths: Vec<i64>,
    mean_divergence_per_length: Vec<f64>,
    divergence_kind: String,
}

/// How fast the change fades, under paired statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct LossEvidence {
    loss_per_token: Option<f64>,
    loss_per_token_ci_95: Option<[f64; 2]>,
}

impl PromptCollapse {
    /// The divergence after each prompt, length by length.
    fn measure(&self, context: &ProbeContext<'_>) -> Result<Fading, Stop> {
        let comparison = Comparison::new(context, self.divergence, self.top_k);
        let divergences = all(self.context_lengths.iter().map(|length| {
            let filler = self.filler(context, *length)?;
            all(self.prompts.iter().map(|prompt| {
                let long = prompt.with_question(format!("{filler}{}", prompt.question()));
                comparison.after(context, &long)
            }))
        }))?;
        let positions = self.context_lengths.iter().map(|length| *length as f64).collect();
        Ok(Fading { positions, divergences })
    }

    /// The text before the prompt.
    fn filler(&self, context: &ProbeContext<'_>, length: i64) -> Result<String, Stop> {
        let length = match usize::try_from(length) {
            Ok(length) if length > 0 => length,
            _ => return Ok(String::new()),
        };
        // Padding tokens often end a turn, so chats are filled with words.
        let is_text = *context.rendering == Rendering::PlainText;
        if is_text && !self.legacy_stuffing && context.can(Capability::Tokenizer) {
            return Ok(format!("{}\n\n", context.answers.filler(length)?));
        }
        let sentence = &context.packs.stuffing;
        let filler: String = if sentence.is_empty() {
            String::new()
        } else {
            sentence.chars().cycle().take(4 * length).collect()
        };
        Ok(format!("{filler}\n\n"))
    }

    fn evidence(&self, means: &[f64]) -> Evidence {
        Evidence::of(&CollapseEvidence {
            context_lengths: self.context_lengths.clone(),
            mean_divergence_per_length: means.to_vec(),
            divergence_kind: self.divergence.name().to_owned(),
        })
        .with(&RawLimit::above(self.assert_half_life_tokens))
    }
}

impl ProbeKind for PromptCollapse {
    const ABOUT: About = About {
        kind: "prompt_collapse",
        category: Category::Adherence,
        aspect: Aspect::Behavior,
        title: "Persistence in long contexts",
        summary: "whether the change fades after a long context",
        question: "Does the change persist when much text precedes the prompt?",
        measure: "How many tokens of filler halve the change.",
        axis: "half-life of the change (tokens)",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        FieldProblem::of_broken_rules([
            (self.context_lengths.len() >= 2, "context_lengths", "needs at least two lengths"),
            (
                self.context_lengths.iter().all(|length| *length <= 1 << 20),
                "context_lengths",
                "must be at most 1048576 tokens",
            ),
            (self.top_k != Some(0), "top_k", "must be at least 1"),
        ])
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        if self.prompts.is_empty() {
            return Ok(Finding::error("there are no prompts"));
        }
        let fading = self.measure(context)?;
        let raw = fading.half_life();
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, raw, Better::Higher);
        let target = self.assert_half_life_tokens;
        let decision = decide(z, self.assert_z_gte, || match raw {
            Some(raw) => (raw >= target, (raw / target).min(1.0)),
            None => (false, 0.0),
        });
        let message = match raw {
            Some(raw) => format!("the change is halved after {raw:.0} tokens"),
            None => "the change has no half-life".to_owned(),
        };
        Ok(Finding {
            score: Some(decision.score),
            raw,
            z_score: z,
            evidence: self.evidence(&fading.means()).with(&calibration),
            ..Finding::without_number(decision.verdict, message + &ending(z, Self::ABOUT.kind))
        })
    }

    /// Claims that the change fades slowly. A change that does not fade passes
    /// and has no half-life.
    fn draft(&self, context: &ProbeContext<'_>, _paired: &PairedSettings) -> Result<Draft, Stop> {
        if self.prompts.is_empty() {
            return Ok(Draft::settled(Finding::error("there are no prompts")));
        }
        let fading = self.measure(context)?;
        if fading.is_nothing() {
            let message = "predictions do not move, so nothing can fade";
            return Ok(Draft::settled(Finding::without_number(ProbeVerdict::Fail, message)));
        }
        let test = fading.test(self.assert_half_life_tokens);
        let raw = fading.half_life();
        let longest = self.context_lengths.iter().copied().max().unwrap_or(0);
        let message = match raw {
            // A half-life beyond what was measured is extrapolated, and its number says little.
            Some(raw) if raw > longest as f64 => {
                format!(
                    "more than half of the change remains after {longest} tokens, the longest context tried"
                )
            }
            Some(raw) => format!("the change is halved after {raw:.0} tokens"),
            None => "the change does not fade".to_owned(),
        };
        let finding = Finding {
            raw,
            ci_95: test.half_lives,
            evidence: self
                .evidence(&fading.means())
                .with(&LossEvidence { loss_per_token: test.rate, loss_per_token_ci_95: test.rate_interval })
                .with(&RawInterval { raw_ci_95: test.half_lives }),
            ..Finding::without_number(ProbeVerdict::Fail, message)
        };
        let limit = test.limit.with_bound(format!("at least {} tokens wanted", self.assert_half_life_tokens));
        Ok(Draft { finding, claim: Claim::Shape(limit) })
    }

    fn chart(evidence: &Evidence, _statistics: Statistics) -> Option<Chart> {
        let found: CollapseEvidence = evidence.read()?;
        let lengths: Vec<f64> = found.context_lengths.iter().map(|length| *length as f64).collect();
        let axes = ["tokens before the prompt", "mean divergence from the base (nats)"];
        Some(Chart {
            about: "Divergence between the models when meaningless tokens precede the prompt.".to_owned(),
            caption: "divergence by context length".to_owned(),
            shape: Shape::curve(&lengths, &found.mean_divergence_per_length, axes)?,
        })
    }
}
