//! All that a probe may look at.

use super::nulls::NullStatistics;
use crate::answer_store::AnswerStore;
use crate::backend::{Capabilities, Capability};
use crate::packs::Packs;
use crate::sections::{Section, SectionKind};
use crate::statistics::Statistics;
use crate::view::View;

/// All that a probe may look at.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// What was answered so far.
    pub answers: &'a AnswerStore,
    /// The view that counts as the base.
    pub base: View,
    /// The view that counts as tuned. Noise takes its place for a null.
    pub tuned: View,
    /// What random draws begin with.
    pub seed: u64,
    /// How many of the likeliest tokens are compared.
    pub top_k: usize,
    /// The document's sections.
    pub sections: &'a [Section],
    /// The document's text.
    pub document: Option<&'a str>,
    /// Texts that probes need of themselves.
    pub packs: &'a Packs,
    /// What the backend can do.
    pub capabilities: &'a Capabilities,
    /// What noise gave, if that is known.
    pub nulls: Option<&'a NullStatistics>,
    /// How verdicts are reached. PairedSettings tests compare whole vocabularies where
    /// the backend sees them; the reference compares the likeliest tokens.
    pub statistics: Statistics,
    /// The kinds of later entries of the suite.
    pub downstream: &'a [String],
}

impl<'a> Setting<'a> {
    /// The same with noise in place of the tuned model: nothing is known of
    /// other noise there.
    pub fn with_noise(&self, noise: View, seed: u64) -> Self {
        Self { tuned: noise, seed, nulls: None, downstream: &[], ..self.clone() }
    }

    /// Whether the backend can do something.
    pub fn can(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// The sections that are plain text.
    pub fn prose(&self) -> impl Iterator<Item = &'a Section> + use<'a> {
        self.sections.iter().filter(|section| section.kind == SectionKind::Prose)
    }
}
