//! Verdicts from paired tests against matched noise.
//!
//! dlm-sway calibrates with noise that is far smaller than any adapter, on other
//! prompts than those it judges. Here every number is measured again, on the
//! same texts, with noise of the adapter's size in every module and of its rank,
//! but in a random direction ([`View::Matched`](crate::View::Matched)).
//!
//! There are two kinds of claims. *The change is not noise* ([`Claim::Change`]):
//! under the null hypothesis the adapter is exchangeable with the draws of
//! noise, so the rank of its number among theirs is an exact p-value. All probes
//! see the same draws, so the largest deviation of any probe, draw by draw,
//! corrects for the number of probes (Westfall and Young). A level of 5 % needs
//! 19 draws; the default is 24. *It stays within a limit* ([`Claim::Limit`]):
//! failing to show harm does not prove harmlessness, so this is an equivalence
//! test, which must clear the limit significantly, and fails only significantly
//! beyond it. Everything between is inconclusive, and the message estimates the
//! number of units that would decide.

mod claim;
mod family;
mod limit;

#[cfg(test)]
mod tests;

pub use claim::{Change, Claim, Draft, EffectUnit, Limit, PairedSettings, Tail};
pub use family::{Concluded, conclude};
pub(crate) use family::{holm, pooled_gain};
pub(crate) use limit::most_hits;
pub use limit::{mean_above, share_below};

/// A divergence below this is rounding.
pub(crate) const NO_CHANGE: f64 = 1e-9;
