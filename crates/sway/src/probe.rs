//! Questions to two views that say something together.
//!
//! A [`Probe`] is a pure function of a [`Setting`]: it reads answers in the
//! book, measures, and judges. What it does not find there stops it with
//! [`Stop::Yet`]; it is run again when the answers have come. So nothing in a
//! probe waits, and the questions of all probes can be asked together.
//!
//! Each kind has a file. Its fields are what a suite file may say; `measure`
//! gives numbers for each unit (a prompt, an item, a section), and judging
//! turns them into a [`Finding`].

mod adapter_ablation;
mod adapter_revert;
mod calibration_drift;
mod cases;
mod cluster_kl;
mod delta_kl;
mod external_perplexity;
mod finding;
mod generations;
mod kind;
mod leakage;
mod null_adapter;
mod nulls;
mod paraphrase_invariance;
mod perturbation;
mod preference_flip;
mod prompt_collapse;
mod reading;
mod section_internalization;
mod setting;
mod style_fingerprint;

pub use adapter_ablation::AdapterAblation;
pub use adapter_revert::{AdapterRevert, Reversion};
pub use calibration_drift::CalibrationDrift;
pub use cases::{Case, Triple};
pub use cluster_kl::{ClusterKl, Topics};
pub use delta_kl::DeltaKl;
pub use external_perplexity::{ExternalPerplexity, Piece};
pub use finding::Finding;
pub(crate) use finding::evidence;
pub(crate) use generations::{Pair, generations};
pub use kind::{FieldFault, FieldFaults, Kind, UnknownKind, find, kinds};
pub use leakage::{Leakage, Recall};
pub use null_adapter::NullAdapter;
pub use nulls::{KindNull, NullStatistics};
pub use paraphrase_invariance::{Gain, Intent, ParaphraseInvariance};
pub use perturbation::Perturbation;
pub use preference_flip::{Margin, Margins, PreferenceFlip};
pub use prompt_collapse::PromptCollapse;
pub(crate) use reading::both;
pub use reading::{ProbeFault, Stop};
pub use section_internalization::{Lift, SectionInternalization};
pub use setting::Setting;
pub use style_fingerprint::{Extended, StyleFingerprint, Writings};

use std::fmt::Debug;

use crate::paired::{Draft, PairedSettings};

/// One entry's probe, with its fields.
pub trait Probe: Debug + Send + Sync {
    /// Reads, measures and judges as dlm-sway does.
    fn judge(&self, setting: &Setting<'_>) -> Result<Finding, Stop>;

    /// Reads, measures, and claims what is judged with all others' claims.
    fn draft(&self, setting: &Setting<'_>, paired: &PairedSettings) -> Result<Draft, Stop>;

    /// Prompts over which the measured change is attributed to layers; none if
    /// the probe measures no change of next tokens.
    fn attribution_prompts(&self) -> &[String] {
        &[]
    }
}

#[cfg(test)]
pub(crate) mod tests;
