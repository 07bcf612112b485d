//! Replicated tensors: which rank reads them, and how the others get them.

use std::collections::BTreeMap;

use weightloom_gang::{Gang, GangExt};

use super::ReplicaReads;
use super::fill::Fill;
use crate::chunk_sums::ChunkSums;
use crate::error::CheckpointError;
use crate::formats::Source;
use crate::manifest::digest_of;
use crate::plan::{LoadState, Slot};
use crate::state::Sharding;

/// Tensors with layouts, and how many replicas the ranks hold together.
pub(super) type ReplicaCounts = BTreeMap<String, u64>;

/// The replicas of all tensors of a state.
pub(super) fn replica_counts(state: &LoadState<'_>) -> ReplicaCounts {
    let copies = |slot: &Slot<'_>| match slot {
        Slot::Tensor { spec, .. } => match spec.sharding {
            Sharding::Layout(layout) => {
                let first = layout.mesh().ranks().next()?;
                Some(layout.replicas(first).ok()?.len() as u64)
            }
            Sharding::Region(_) | Sharding::Parts(_) => None,
        },
        Slot::Bytes(_) => None,
    };
    state.slots().iter().filter_map(|(name, slot)| Some((name.clone(), copies(slot)?))).collect()
}

/// Which rank reads each replicated tensor. Every rank reads tensors without an
/// entry itself.
#[derive(Debug, Default)]
pub(super) struct ReplicaReaders(BTreeMap<String, Vec<usize>>);

impl ReplicaReaders {
    pub(super) fn new(
        source: &Source,
        state: &LoadState<'_>,
        gang: &dyn Gang,
        replicas: ReplicaReads,
    ) -> Self {
        let is_remote = source.storage.folder().is_none();
        let once = replicas == ReplicaReads::Once || replicas == ReplicaReads::Auto && is_remote;
        if !once || gang.size() == 1 {
            return Self::default();
        }
        let mut readers = BTreeMap::new();
        for (name, slot) in state.slots() {
            let Slot::Tensor { spec, .. } = slot else { continue };
            let Sharding::Layout(layout) = spec.sharding else { continue };
            let Ok(mut ranks) = layout.replicas(gang.rank()) else { continue };
            if ranks.len() > 1 {
                // Spread the reads over the replicas by name, since ranks may ask
                // for different sets of tensors.
                ranks.sort_unstable();
                let turn = (digest_of(name.as_bytes()).0 % ranks.len() as u128) as usize;
                ranks.rotate_left(turn);
                readers.insert(name.clone(), ranks);
            }
        }
        Self(readers)
    }

    /// The rank that reads a tensor, if it is replicated.
    pub(super) fn reader(&self, name: &str) -> Option<usize> {
        self.0.get(name).map(|ranks| ranks[0])
    }

    /// Sends tensors that this rank read for others, and receives those that
    /// they read for it. Sends never wait, so any order works that is the same
    /// on all ranks.
    pub(super) fn exchange(
        &self,
        fills: &mut [Fill<'_, '_>],
        gang: &dyn Gang,
        sums: Option<&ChunkSums>,
    ) -> Result<u64, CheckpointError> {
        const TAG: u32 = 0x5d20_0000;
        let mut received = 0;
        for fill in fills {
            let Some(ranks) = self.0.get(&fill.item.destination.name) else { continue };
            let destination = &mut fill.destination;
            if ranks[0] == gang.rank() {
                for &other in &ranks[1..] {
                    gang.send_slice(destination.bytes, other, TAG)?;
                }
            } else {
                gang.recv(destination.bytes, ranks[0], TAG)?;
                received += destination.bytes.len() as u64;
                if let (Some(sums), Some(region)) = (sums, &fill.region) {
                    sums.add_checked(&fill.item.storage.name, region, destination.dtype, destination.bytes);
                }
            }
        }
        Ok(received)
    }
}
