//! `section_internalization`: whether each section of the document was learned.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{Better, calibrate, decide, ending};
use super::chart::{Chart, ChartBar, Shape};
use super::external_perplexity::ExternalPerplexity;
use super::lookup::{all, both, completions, cut, estimated_tokens};
use super::{
    About, Evidence, Finding, ItemResult, ItemResults, ProbeContext, ProbeKind, RawInterval, RawLimit, Stop,
};
use crate::category::Category;
use crate::numbers::bootstrap::mean_interval;
use crate::numbers::mean;
use crate::numbers::sign_flip_test::sign_flip_test;
use crate::numbers::student_t::TTest;
use crate::paired::{Change, Claim, Draft, EffectUnit, PairedSettings, Tail};
use crate::prompt::Prompt;
use crate::record::ProbeVerdict;
use crate::sections::{Section, SectionKind};
use crate::statistics::Statistics;
use crate::verdict::Aspect;

/// The most characters of a section's label in a message.
const LABEL_LETTERS: usize = 60;

/// The loss that each section lost, compared with the other sections.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SectionInternalization {
    /// Kinds of sections to measure.
    pub include_kinds: Vec<SectionKind>,
    /// Lead over the others from which a section counts as learned.
    pub per_section_threshold: f64,
    /// Lowest share of learned sections that passes without noise to compare
    /// with.
    pub assert_passing_section_frac: f64,
    /// Lowest z-score against noise that passes.
    pub assert_z_gte: f64,
    /// Most characters of a section to score.
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

/// Evidence of [`SectionInternalization`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct InternalizationEvidence {
    per_section: Vec<SectionEvidence>,
    num_sections: usize,
    passing_frac: f64,
    per_section_threshold: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct SectionEvidence {
    section_id: String,
    kind: String,
    tag: String,
    base_nll: f64,
    ft_nll: f64,
    own_lift: f64,
    leak_lift: f64,
    effective_sis: f64,
    passed: bool,
}

impl SectionEvidence {
    /// What readers call the section: its tag, or its id.
    fn label(&self) -> Option<&str> {
        [self.tag.as_str(), &self.section_id].into_iter().find(|name| !name.trim().is_empty())
    }
}

/// The comparison with neutral text, under paired statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct NeutralEvidence {
    neutral_lift: f64,
    mean_effective_sis: Option<f64>,
    effective_ci_95: Option<[f64; 2]>,
}

/// A relative drop of a loss in words: `dropped by 12.3 %`.
fn moved(drop: f64) -> String {
    let direction = if drop < 0.0 { "rose" } else { "dropped" };
    format!("{direction} by {:.1} %", 100.0 * drop.abs())
}

/// The sections that gained most and least, in words; nothing for a single one.
fn extremes(gains: &[(&str, f64)]) -> String {
    let by_gain = |one: &&(&str, f64), other: &&(&str, f64)| one.1.total_cmp(&other.1);
    let named = |(label, gain): (&str, f64)| {
        let label: String = label.chars().take(LABEL_LETTERS).collect();
        format!("“{label}”, {:.1} %", 100.0 * gain)
    };
    match (gains.iter().max_by(by_gain), gains.iter().min_by(by_gain)) {
        (Some(most), Some(least)) if most.1 > least.1 => {
            format!(" (most: {}; least: {})", named(*most), named(*least))
        }
        _ => String::new(),
    }
}

/// The loss of one section, in nats per token.
#[derive(Clone, Debug, PartialEq)]
struct Lift<'a> {
    section: &'a Section,
    base: f64,
    tuned: f64,
}

impl Lift<'_> {
    /// The share of the loss that fine-tuning removed.
    fn own(&self) -> f64 {
        relative_drop(self.base, self.tuned)
    }

    /// What readers call the section: its tag, or its id.
    fn label(&self) -> &str {
        let tag = self.section.tag.as_deref().filter(|tag| !tag.trim().is_empty());
        tag.unwrap_or(&self.section.id)
    }

    fn evidence(&self, leak_lift: f64, threshold: f64) -> SectionEvidence {
        let effective_sis = self.own() - leak_lift;
        SectionEvidence {
            section_id: self.section.id.clone(),
            kind: self.section.kind.to_string(),
            tag: self.section.tag.clone().unwrap_or_default(),
            base_nll: self.base,
            ft_nll: self.tuned,
            own_lift: self.own(),
            leak_lift,
            effective_sis,
            passed: effective_sis >= threshold,
        }
    }
}

/// The relative drop of a loss, or the absolute one if there was none.
fn relative_drop(base: f64, tuned: f64) -> f64 {
    if base > 0.0 { (base - tuned) / base } else { base - tuned }
}

impl SectionInternalization {
    fn chosen<'a>(&self, context: &ProbeContext<'a>) -> Vec<&'a Section> {
        context.sections.iter().filter(|section| self.include_kinds.contains(&section.kind)).collect()
    }

    /// Why there is nothing to measure.
    fn not_applicable(&self, context: &ProbeContext<'_>, least: usize) -> Option<Finding> {
        let found = self.chosen(context).len();
        if context.sections.is_empty() {
            return Some(Finding::skip("no document with sections"));
        }
        (found < least)
            .then(|| Finding::skip(format!("{found} sections of these kinds are fewer than {least}")))
    }

    fn measure<'a>(&self, context: &ProbeContext<'a>) -> Result<Vec<Lift<'a>>, Stop> {
        all(self.chosen(context).into_iter().map(|section| {
            let (base, tuned) = self.losses(context, section)?;
            Ok::<_, Stop>(Lift { section, base, tuned })
        }))
    }

    fn losses(&self, context: &ProbeContext<'_>, section: &Section) -> Result<(f64, f64), Stop> {
        let pairs: Vec<(&Prompt, &str)> = match section.kind {
            SectionKind::Prose => Vec::new(),
            SectionKind::Instruction => {
                section.questions.iter().map(|asked| (&asked.prompt, asked.gold.as_str())).collect()
            }
            SectionKind::Preference => {
                section.preferences.iter().map(|asked| (&asked.prompt, asked.chosen.as_str())).collect()
            }
        };
        if pairs.is_empty() {
            let text = cut(&section.content, self.max_prose_chars);
            if text.trim().is_empty() {
                return Ok((0.0, 0.0));
            }
            let (base, tuned) = both(
                context.answers.rolling(&context.base, &text),
                context.answers.rolling(&context.tuned, &text),
            )?;
            return Ok((-base.mean(), -tuned.mean()));
        }
        let found = all(pairs.iter().map(|(prompt, answer)| {
            let (base, tuned) = completions(context, prompt, answer)?;
            let tokens = estimated_tokens(answer);
            Ok::<_, Stop>((-base / tokens, -tuned / tokens))
        }))?;
        let (base, tuned): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
        Ok((mean(&base).unwrap_or(0.0), mean(&tuned).unwrap_or(0.0)))
    }

    fn evidence(&self, per_section: Vec<SectionEvidence>, interval: Option<[f64; 2]>) -> Evidence {
        let item = |section: &SectionEvidence| {
            ItemResult::new(section.label().unwrap_or_default(), section.base_nll, section.ft_nll)
        };
        let results = ItemResults::lower_is_better(ItemResults::NATS_PER_TOKEN, per_section.iter().map(item));
        let passed = per_section.iter().filter(|section| section.passed).count();
        Evidence::of(&InternalizationEvidence {
            num_sections: per_section.len(),
            passing_frac: passed as f64 / per_section.len() as f64,
            per_section_threshold: self.per_section_threshold,
            per_section,
        })
        .with(&RawInterval { raw_ci_95: interval })
        .with(&results)
    }
}

impl ProbeKind for SectionInternalization {
    const ABOUT: About = About {
        kind: "section_internalization",
        category: Category::Attribution,
        aspect: Aspect::Learning,
        title: "Sections of the document",
        summary: "whether each section of the document was learned",
        question: "Which sections of the document does the fine-tuned model know better than the base?",
        measure: "Share of each section's loss that fine-tuning removed, beyond other sections or neutral text.",
        axis: "mean gain of the sections",
    };

    fn on_noise(context: &ProbeContext<'_>) -> Option<Self> {
        (context.sections.len() >= 2).then(Self::default)
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        if let Some(reason) = self.not_applicable(context, 2) {
            return Ok(reason);
        }
        let measured = self.measure(context)?;
        let per_section: Vec<SectionEvidence> = measured
            .iter()
            .map(|lift| {
                let others: Vec<f64> = measured
                    .iter()
                    .filter(|other| other.section.id != lift.section.id)
                    .map(Lift::own)
                    .collect();
                lift.evidence(mean(&others).unwrap_or(0.0), self.per_section_threshold)
            })
            .collect();
        let effective: Vec<f64> = per_section.iter().map(|section| section.effective_sis).collect();
        let passed = per_section.iter().filter(|section| section.passed).count();
        // Leads over the others add up to zero whatever was learned; dlm-sway
        // takes their mean nevertheless.
        let raw = mean(&effective).unwrap_or(0.0);
        let share = passed as f64 / measured.len() as f64;
        let interval = mean_interval(&effective, context.seed);
        let (z, calibration) = calibrate(context, Self::ABOUT.kind, Some(raw), Better::Higher);
        let decision = decide(z, self.assert_z_gte, || (share >= self.assert_passing_section_frac, share));
        Ok(Finding {
            score: Some(decision.score),
            raw: Some(raw),
            z_score: z,
            ci_95: interval,
            evidence: self.evidence(per_section, interval).with(&calibration),
            ..Finding::without_number(
                decision.verdict,
                format!(
                    "{passed} of {} sections gained more than the others{}",
                    measured.len(),
                    ending(z, Self::ABOUT.kind)
                ),
            )
        })
    }

    /// Claims that the document became more likely than under noise, and that
    /// neutral text did not gain more than the document.
    ///
    /// dlm-sway compares sections with each other, which adds up to zero. This
    /// compares the gain itself with noise: under the lead over neutral text,
    /// noise that harms neutral text most would look like learning.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        if let Some(reason) = self.not_applicable(context, 1) {
            return Ok(Draft::settled(reason));
        }
        let neutral =
            ExternalPerplexity { chunk_chars: 1024, max_chunks: 4, ..ExternalPerplexity::default() };
        let measured = paired.measure_with_noise(context, |context| self.measure(context));
        let ((lifts, nulls), chunks) = both(measured, neutral.measure(context))?;
        let controls: Vec<f64> =
            chunks.iter().map(|chunk| relative_drop(-chunk.base, -chunk.tuned)).collect();
        let control = mean(&controls).unwrap_or(0.0);
        let own = |lifts: &[Lift<'_>]| -> Vec<f64> { lifts.iter().map(Lift::own).collect() };
        let gains = own(&lifts);
        let effective: Vec<f64> = gains.iter().map(|gain| gain - control).collect();
        let raw = mean(&gains).unwrap_or(0.0);
        let interval = mean_interval(&gains, context.seed);
        let elsewhere = TTest::of(&effective).is_some_and(|test| test.p_less(0.0) <= paired.level);
        let decided =
            (raw > 0.0 && elsewhere).then(|| (ProbeVerdict::Fail, "neutral text gained more".to_owned()));
        let per_section =
            lifts.iter().map(|lift| lift.evidence(control, self.per_section_threshold)).collect();
        let finding = Finding {
            raw: Some(raw),
            ci_95: interval,
            evidence: self.evidence(per_section, interval).with(&RawLimit::above(0.0)).with(
                &NeutralEvidence {
                    neutral_lift: control,
                    mean_effective_sis: mean(&effective),
                    effective_ci_95: mean_interval(&effective, context.seed),
                },
            ),
            ..Finding::without_number(
                ProbeVerdict::Fail,
                format!(
                    "the loss of sections {} on average{}; that of neutral text {}",
                    moved(raw),
                    extremes(&lifts.iter().map(|lift| (lift.label(), lift.own())).collect::<Vec<_>>()),
                    moved(control)
                ),
            )
        };
        let change = Change {
            observed: raw,
            nulls: nulls.iter().filter_map(|lifts| mean(&own(lifts))).collect(),
            tail: Tail::Gain,
            absent: ProbeVerdict::Fail,
            fallback_p: Some(sign_flip_test(&gains, context.seed)),
            units: gains.len(),
            unit: "sections",
            effect_unit: EffectUnit::Percent,
            decided,
        };
        Ok(Draft { finding, claim: Claim::Change(change) })
    }

    /// One bar per section, of the number whose mean the probe measures: the gain
    /// itself, or under the reference statistics the lead over other sections.
    fn chart(evidence: &Evidence, statistics: Statistics) -> Option<Chart> {
        let found: InternalizationEvidence = evidence.read()?;
        let value = |section: &SectionEvidence| match statistics {
            Statistics::Paired => section.own_lift,
            Statistics::Reference => section.effective_sis,
        };
        let bar = |section: &SectionEvidence| {
            Some(ChartBar {
                label: section.label()?.to_owned(),
                value: 100.0 * value(section),
                interval: None,
            })
        };
        let average = mean(&found.per_section.iter().map(value).collect::<Vec<_>>())?;
        let neutral = evidence.read::<NeutralEvidence>().map(|neutral| neutral.neutral_lift);
        Some(Chart {
            about: match statistics {
                Statistics::Paired => {
                    "Percentage of each section's loss that fine-tuning removed. A section was learned if it gained \
                     and neutral text did not gain as much."
                }
                Statistics::Reference => {
                    "Percentage of each section's loss that fine-tuning removed, minus the mean of the other \
                     sections. Above 0, the section was learned better than the others."
                }
            }
            .to_owned(),
            caption: match neutral {
                Some(neutral) => {
                    format!("the loss {} on average, that of neutral text {}", moved(average), moved(neutral))
                }
                None => format!("gain of each section, {:.1} % on average", 100.0 * average),
            },
            shape: Shape::Bars {
                columns: ["section", "gain in %"].map(str::to_owned),
                bars: found.per_section.iter().filter_map(bar).collect(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_was_learned_most_and_least() {
        let gains =
            [("line 1: Who are you?", 0.75), ("line 2: Hello!", 0.25), ("line 3: How old are you?", 0.5)];
        assert_eq!(
            extremes(&gains),
            " (most: “line 1: Who are you?”, 75.0 %; least: “line 2: Hello!”, 25.0 %)"
        );
        assert_eq!(extremes(&gains[..1]), "");
        // A loss that rose did not drop by a negative share.
        assert_eq!([moved(0.739), moved(-0.122)], ["dropped by 73.9 %", "rose by 12.2 %"]);
    }
}
