//! The question of learning, asked of all its probes together.
//!
//! Corrected for the number of probes, most may be too weak: noise of the size of
//! an adapter that also does damage varies widely. The question needs one answer
//! only, so its probes are tested as one, once any of them beats noise by itself.

use super::{Aspect, Conclusion, Decision, of_aspect};
use crate::paired::pooled_gain;
use crate::probe::NullComparison;
use crate::record::Record;
use crate::score::LEVEL;

/// The gains of all probes of learning, compared with noise as one number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PooledLearning {
    /// How many probes were compared with noise.
    probes: usize,
    /// Probes that failed for another reason than noise: neutral text gained more,
    /// or the gain holds for the taught words only.
    excluded: usize,
    draws: usize,
    p: f64,
}

impl PooledLearning {
    /// Pools the probes of a report; none if fewer than two were compared with
    /// noise.
    pub(super) fn of(records: &[Record]) -> Option<Self> {
        let compared: Vec<(f64, NullComparison)> = of_aspect(records, Aspect::Learning)
            .filter_map(|record| Some((record.raw?, record.evidence.read::<NullComparison>()?)))
            .filter(|(_, noise)| !noise.null_samples.is_empty())
            .collect();
        let (excluded, pooled): (Vec<_>, Vec<_>) =
            compared.into_iter().partition(|(_, noise)| noise.decided_otherwise);
        if pooled.len() < 2 {
            return None;
        }
        let measured: Vec<(f64, Vec<f64>)> =
            pooled.into_iter().map(|(raw, noise)| (raw, noise.null_samples)).collect();
        let draws = measured.first()?.1.len();
        let p = pooled_gain(&measured)?;
        Some(Self { probes: measured.len(), excluded: excluded.len(), draws, p })
    }

    /// Whether the probes together gained what noise does not.
    pub(super) fn is_found(&self) -> bool {
        self.p <= LEVEL && self.excluded < self.probes
    }

    /// The conclusion yes, with this comparison before the evidence of another.
    pub(super) fn conclude(&self, other: Conclusion) -> Conclusion {
        let evidence = std::iter::once(self.fact()).chain(other.evidence).collect();
        Conclusion { decision: Decision::Yes, evidence }
    }

    /// The comparison in words.
    pub(super) fn fact(&self) -> String {
        format!(
            "{} probes of learning together gained more than under any of {} draws of noise (p={:.3})",
            self.probes, self.draws, self.p
        )
    }
}
