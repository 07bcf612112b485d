//! Verdicts from paired tests against matched noise.
//!
//! dlm-sway measures by noise that is far quieter than any adapter, on other
//! prompts than those it judges. Here every number is measured again, on the
//! same texts, under changes that are as large as the adapter's in every
//! module and of the same rank, but point elsewhere ([`View::Matched`]).
//!
//! There are two kinds of claims. *The change is no noise*
//! ([`Claim::Change`]): an adapter that is noise would be one of its own
//! nulls, so the rank of its number among theirs gives an exact probability.
//! All probes see the same seeds, so the largest deviation of any probe, seed
//! by seed, tells how often a suite of noise would claim anything
//! (Westfall and Young); 19 seeds are enough for 5 %, 24 are drawn. *It stays within a
//! limit* ([`Claim::Limit`]): not being able to show harm is no proof of
//! harmlessness, so the limit must be cleared with confidence (an equivalence
//! test), and is judged broken only with confidence as well. What lies between
//! is inconclusive, with the number of units that would probably decide.
//!
//! [`View::Matched`]: crate::View::Matched

mod change;
mod claim;
mod family;
mod harm;
mod shape;

#[cfg(test)]
mod tests;

pub use claim::{Change, Claim, Draft, Limit, PairedSettings, Tail};
pub use family::conclude;

pub(crate) use change::{
    cluster_kl, delta_kl, paraphrase_invariance, preference_flip, section_internalization,
};
pub(crate) use harm::{calibration_drift, external_perplexity, leakage};
pub(crate) use shape::{adapter_ablation, adapter_revert, null_adapter, prompt_collapse, style_fingerprint};
