//! Everything that a probe may look at.

use super::calibration::NullStatistics;
use super::registry::Probes;
use crate::answer_store::AnswerStore;
use crate::backend::{Capabilities, Capability};
use crate::chat::Rendering;
use crate::packs::Packs;
use crate::sections::{Section, SectionKind};
use crate::statistics::Statistics;
use crate::view::View;

/// Everything that a probe may look at.
#[derive(Clone, Debug)]
pub struct ProbeContext<'a> {
    /// Answers received so far.
    pub answers: &'a AnswerStore,
    /// The view that counts as the base.
    pub base: View,
    /// The view that counts as fine-tuned. Noise takes its place when a probe
    /// is calibrated.
    pub tuned: View,
    /// Seed of random draws.
    pub seed: u64,
    /// How many of the most likely tokens are compared.
    pub top_k: usize,
    /// Sections of the document.
    pub sections: &'a [Section],
    /// Text of the document.
    pub document: Option<&'a str>,
    /// Built-in texts.
    pub packs: &'a Packs,
    /// The kinds of probes that the suite may name.
    pub probes: &'a Probes,
    /// Optional features of the backend.
    pub capabilities: &'a Capabilities,
    /// What noise measured, if it has been run.
    pub nulls: Option<&'a NullStatistics>,
    /// How verdicts are reached. Paired tests compare whole vocabularies where
    /// the backend sees them; the reference compares the most likely tokens.
    pub statistics: Statistics,
    /// How prompts are rendered.
    pub rendering: &'a Rendering,
    /// The kinds of later entries of the suite.
    pub downstream: &'a [String],
}

impl<'a> ProbeContext<'a> {
    /// The context in which noise takes the place of the fine-tuned model. No
    /// other noise is known there.
    pub fn with_noise(&self, noise: View, seed: u64) -> Self {
        Self { tuned: noise, seed, nulls: None, downstream: &[], ..self.clone() }
    }

    /// Whether the backend has a feature.
    pub fn can(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Sections of plain text.
    pub fn prose(&self) -> impl Iterator<Item = &'a Section> + use<'a> {
        self.sections.iter().filter(|section| section.kind == SectionKind::Prose)
    }
}
