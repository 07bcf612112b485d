//! Probes: what a suite measures, and how it judges that.
//!
//! Each kind of probe is one file: its fields in a suite, what it is about, how
//! it measures, its verdict under both [`Statistics`], its
//! evidence, and its chart. To add a kind here, implement [`ProbeKind`] in a file
//! and add it to the lists below. Programs that use this crate implement
//! [`ProbeKind`] too, and add it to [`Probes`]; suites then name it. A probe that
//! no suite names implements [`Probe`], for an
//! [`Entry`](crate::runner::Entry::of_probe).
//!
//! A probe is a pure function of a [`ProbeContext`]. It looks up answers; if one
//! is missing, it stops with [`Stop::Pending`], and runs again once the backend
//! has answered. Probes never wait, so the questions of all probes go to the
//! backend together.

mod about;
mod adapter_ablation;
mod adapter_revert;
mod calibration;
mod calibration_drift;
mod cases;
mod chart;
mod cluster_kl;
mod context;
mod decoding;
mod delta_kl;
mod evidence;
mod external_perplexity;
mod fading;
mod finding;
mod generations;
mod items;
mod kind;
mod leakage;
mod lookup;
mod multi_turn_coherence_decay;
mod null_adapter;
mod paraphrase_invariance;
mod perturbation;
mod preference_flip;
mod prompt_collapse;
mod registry;
mod section_internalization;
mod style_fingerprint;
mod tool_call;
mod tool_use_fidelity;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use about::PREFLIGHT;
pub use about::{About, RecordedAbout, about};
pub use adapter_ablation::AdapterAblation;
pub use adapter_revert::AdapterRevert;
pub use calibration::{KindNull, NullStatistics};
pub use calibration_drift::CalibrationDrift;
pub use cases::{Case, Triple};
pub use chart::{Align, Chart, ChartBar, EvidenceTable, Shape, TableColumn};
pub use cluster_kl::ClusterKl;
pub use context::ProbeContext;
pub use delta_kl::DeltaKl;
pub(crate) use evidence::EntryWeight;
pub use evidence::{
    Calibration, Evidence, LimitTest, NullComparison, PassingSide, RawInterval, RawLimit, TaughtWordsOnly,
};
pub use external_perplexity::ExternalPerplexity;
pub use finding::{Finding, InconsistentFinding};
pub use generations::{Generation, Generations};
pub use items::{Better, ItemResult, ItemResults};
pub use kind::{FieldErrors, FieldProblem, Kind, ProbeKind};
pub use leakage::Leakage;
pub use lookup::{ProbeError, Stop, all as look_up_all, both as look_up_both};
pub use multi_turn_coherence_decay::MultiTurnCoherenceDecay;
pub use null_adapter::{NullAdapter, NullAdapterEvidence, SkippedKind};
pub use paraphrase_invariance::{Intent, ParaphraseInvariance};
pub use perturbation::Perturbation;
pub use preference_flip::PreferenceFlip;
pub use prompt_collapse::PromptCollapse;
pub use registry::{Probes, RegisterProbeError, RegisterProbeProblem, UnknownKind};
pub use section_internalization::SectionInternalization;
pub use style_fingerprint::{Extended, StyleFingerprint};
pub use tool_use_fidelity::{ToolCase, ToolUseFidelity};
pub use weightloom_errors::Panicked;

use std::fmt::Debug;

use crate::paired::{Draft, PairedSettings};
use crate::prompt::Prompt;
use crate::statistics::Statistics;

/// All built-in kinds, in the order of the documentation.
pub fn kinds() -> &'static [Kind] {
    const KINDS: &[Kind] = &[
        Kind::of::<NullAdapter>(),
        Kind::of::<DeltaKl>(),
        Kind::of::<AdapterRevert>(),
        Kind::of::<PromptCollapse>(),
        Kind::of::<MultiTurnCoherenceDecay>(),
        Kind::of::<ClusterKl>(),
        Kind::of::<SectionInternalization>(),
        Kind::of::<ParaphraseInvariance>(),
        Kind::of::<PreferenceFlip>(),
        Kind::of::<ToolUseFidelity>(),
        Kind::of::<StyleFingerprint>(),
        Kind::of::<CalibrationDrift>(),
        Kind::of::<Leakage>(),
        Kind::of::<ExternalPerplexity>(),
        Kind::of::<AdapterAblation>(),
    ];
    KINDS
}

/// The built-in kind of a name.
pub(crate) fn built_in(name: &str) -> Option<&'static Kind> {
    kinds().iter().find(|kind| kind.name() == name)
}

/// One configured probe. Every [`ProbeKind`] is one.
pub trait Probe: Debug + Send + Sync {
    /// What the probe is about, for reports.
    fn about(&self) -> About;

    /// Measures and reaches a verdict by the rules of dlm-sway.
    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop>;

    /// Measures and drafts a claim, which is judged together with the claims of
    /// all other probes.
    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop>;

    /// Prompts over which the measured change is attributed to layers; none if
    /// the probe measures no change of next tokens.
    fn attribution_prompts(&self) -> &[Prompt] {
        &[]
    }

    /// A chart of the evidence.
    fn chart(&self, _evidence: &Evidence, _statistics: Statistics) -> Option<Chart> {
        None
    }

    /// A table of the evidence.
    fn table(&self, _evidence: &Evidence) -> Option<EvidenceTable> {
        None
    }
}

impl<T: ProbeKind> Probe for T {
    fn about(&self) -> About {
        T::ABOUT
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        ProbeKind::judge(self, context)
    }

    fn draft(&self, context: &ProbeContext<'_>, paired: &PairedSettings) -> Result<Draft, Stop> {
        ProbeKind::draft(self, context, paired)
    }

    fn attribution_prompts(&self) -> &[Prompt] {
        ProbeKind::attribution_prompts(self)
    }

    fn chart(&self, evidence: &Evidence, statistics: Statistics) -> Option<Chart> {
        T::chart(evidence, statistics)
    }

    fn table(&self, evidence: &Evidence) -> Option<EvidenceTable> {
        T::table(evidence)
    }
}
