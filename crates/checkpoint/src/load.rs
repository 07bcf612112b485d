//! Loading onto any mesh from any source.

use std::collections::{BTreeMap, BTreeSet};

use weightloom_gang::{Gang, GangExt};

use crate::chunk_sums::ChunkSums;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::formats::Source;
use crate::manifest::digest_of;
use crate::observer::Observer;
use crate::plan::{
    Destination, LoadPlan, LoadPlanError, LoadPlanner, LoadState, MissingKeys, PlanContext, ReadItem, Slot,
    StandardLoadPlanner, UnexpectedKeys,
};
use crate::read::{ReadOptions, ReadReport, ReadRequest, read_verified};
use crate::state::Sharding;
use crate::verify::{Damage, check_sums};

/// Options of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Options of reading.
    pub read: ReadOptions,
    /// What to do about missing entries.
    pub missing: MissingKeys,
    /// What to do about unexpected entries.
    pub unexpected: UnexpectedKeys,
    /// Whether to compare checksums, if the source has them.
    pub verify: Verify,
    /// Which ranks read replicated tensors.
    pub replicas: ReplicaReads,
}

/// Whether checksums are compared while loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// If the source has them.
    #[default]
    Checksums,
    /// Never.
    Skip,
}

/// Which ranks read replicated tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaReads {
    /// Each rank from a folder, whose page cache they share; one rank from
    /// remote storage.
    #[default]
    Auto,
    /// Each rank reads its replica.
    Each,
    /// One rank reads and sends to the others.
    Once,
}

/// Outcome of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Statistics of this rank's reads.
    pub read: ReadReport,
    /// Bytes received from other ranks.
    pub received: u64,
    /// Bytes that were compared with checksums, over all ranks.
    pub verified: u64,
}

/// Loads a state. Every rank of the gang.
///
/// Reads nothing before every name, shape and layout matches on every rank.
pub fn load(
    source: &Source,
    state: LoadState<'_>,
    gang: &dyn Gang,
    options: &LoadOptions,
    observer: &dyn Observer,
) -> Result<LoadReport, CheckpointError> {
    let replicas = ReplicaReaders::new(source, &state, gang, options.replicas);
    let replica_counts = replica_counts(&state);
    let mut planner = StandardLoadPlanner::new(state);
    planner.missing = options.missing;
    planner.unexpected = options.unexpected;
    Load { source, replicas, replica_counts, gang, options, observer }.run(&mut planner)
}

/// Loads with a custom planner. Every rank of the gang.
pub fn load_with<'a>(
    source: &Source,
    planner: &mut dyn LoadPlanner<'a>,
    gang: &dyn Gang,
    options: &LoadOptions,
    observer: &dyn Observer,
) -> Result<LoadReport, CheckpointError> {
    let (replicas, replica_counts) = (ReplicaReaders::default(), BTreeMap::new());
    Load { source, replicas, replica_counts, gang, options, observer }.run(planner)
}

/// Tensors with layouts, and how many replicas the ranks hold together.
type ReplicaCounts = BTreeMap<String, u64>;

fn replica_counts(state: &LoadState<'_>) -> ReplicaCounts {
    let copies = |slot: &Slot<'_>| match slot {
        Slot::Tensor { spec, .. } => match spec.sharding {
            Sharding::Layout(layout) => {
                let first = layout.mesh().ranks().next()?;
                Some(layout.replicas(first).ok()?.len() as u64)
            }
            Sharding::Region(_) => None,
        },
        Slot::Bytes(_) => None,
    };
    state.slots().iter().filter_map(|(name, slot)| Some((name.clone(), copies(slot)?))).collect()
}

/// A load on one rank.
struct Load<'l> {
    source: &'l Source,
    replicas: ReplicaReaders,
    replica_counts: ReplicaCounts,
    gang: &'l dyn Gang,
    options: &'l LoadOptions,
    observer: &'l dyn Observer,
}

impl Load<'_> {
    fn run<'a>(&self, planner: &mut dyn LoadPlanner<'a>) -> Result<LoadReport, CheckpointError> {
        let Self { source, gang, .. } = *self;
        let plan = self.plan(planner)?;
        let sums = match (&source.manifest, self.options.verify) {
            (Some(manifest), Verify::Checksums) => Some(ChunkSums::new(
                manifest.chunk_size,
                manifest.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.dtype, &tensor.shape)),
            )),
            _ => None,
        };
        let mut report = collective_result(gang, self.fill(planner, &plan.tensors, sums.as_ref()))?;
        if let (Some(manifest), Some(sums)) = (&source.manifest, sums) {
            let checked = check_sums(manifest, sums, &self.replica_counts, gang)?;
            report.verified = checked.bytes;
            let whole = match checked.damage.as_slice() {
                [] => Ok(()),
                damage => Err(CheckpointError::Damaged(Damage { chunks: damage.to_vec() })),
            };
            collective_result(gang, whole)?;
        }
        let applied = plan.bytes.iter().try_for_each(|(stored, wanted)| {
            let missing = || LoadPlanError::NoSuchItem { name: stored.clone() };
            let bytes = source.read_bytes(stored)?.ok_or_else(missing)?;
            Ok(planner.apply_bytes(wanted, bytes)?)
        });
        collective_result(gang, applied)?;
        Ok(report)
    }

    /// This rank's plan.
    fn plan(&self, planner: &mut dyn LoadPlanner<'_>) -> Result<LoadPlan, CheckpointError> {
        let (index, gang) = (&*self.source.index, self.gang);
        let context = PlanContext { rank: gang.rank(), world: gang.size() };
        let planned = planner.configure(index, context).and_then(|()| planner.local_plan(index));
        let mut plan = collective_result(gang, planned.map_err(CheckpointError::from))?;
        if planner.needs_global_plan() {
            let local = gang.all_gather_objects(&plan)?;
            let global = planner.global_plan(local.clone());
            let own = global.and_then(|mut global| {
                check_global_plan(&local, &global)?;
                Ok(std::mem::take(&mut global[gang.rank()]))
            });
            plan = collective_result(gang, own.map_err(CheckpointError::from))?;
        }
        collective_result(gang, planner.finalize(plan).map_err(CheckpointError::from))
    }

    /// Fills the destinations of all items.
    fn fill<'a>(
        &self,
        planner: &mut dyn LoadPlanner<'a>,
        items: &[ReadItem],
        sums: Option<&ChunkSums>,
    ) -> Result<LoadReport, CheckpointError> {
        let mut destinations = Vec::new();
        let read =
            acquire(planner, items, &mut destinations).and_then(|()| self.read_own(&mut destinations, sums));
        // Fail together before waiting for bytes of another rank.
        let read = collective_result(self.gang, read)?;
        let received = self.replicas.exchange(&mut destinations, self.gang, sums)?;
        for (item, destination) in destinations {
            planner.apply_tensor(item, destination)?;
        }
        Ok(LoadReport { read, received, ..LoadReport::default() })
    }

    /// Reads the tensors that this rank reads for itself and for others.
    fn read_own(
        &self,
        destinations: &mut [(&ReadItem, Destination<'_>)],
        sums: Option<&ChunkSums>,
    ) -> Result<ReadReport, CheckpointError> {
        let mut requests = Vec::new();
        for (item, destination) in destinations {
            let reader = self.replicas.reader(&item.destination.name);
            if reader.is_some_and(|reader| reader != self.gang.rank()) {
                continue;
            }
            let missing = || LoadPlanError::NoSuchItem { name: item.storage.name.clone() };
            let entry = self.source.index.tensors().get(&item.storage.name).ok_or_else(missing)?;
            requests.push(ReadRequest {
                entry,
                name: &item.storage.name,
                region: destination.region.clone(),
                dtype: destination.dtype,
                into: destination.bytes,
            });
        }
        read_verified(self.source, requests, &self.options.read, sums, self.observer)
    }
}

/// Refuses a global plan that has no plan for a rank, or in which no rank loads
/// an entry that the local plans load.
fn check_global_plan(local: &[LoadPlan], global: &[LoadPlan]) -> Result<(), LoadPlanError> {
    if global.len() != local.len() {
        let (expected, found) = (local.len(), global.len());
        return Err(LoadPlanError::PlanCount { expected, found });
    }
    let loaded: BTreeSet<&str> = global.iter().flat_map(destinations).collect();
    let planned: BTreeSet<&str> = local.iter().flat_map(destinations).collect();
    let dropped: Vec<String> = planned.difference(&loaded).map(|name| (*name).to_owned()).collect();
    if dropped.is_empty() { Ok(()) } else { Err(LoadPlanError::Dropped { names: dropped }) }
}

/// The names of the entries that a plan fills.
fn destinations(plan: &LoadPlan) -> impl Iterator<Item = &str> {
    let tensors = plan.tensors.iter().map(|item| item.destination.name.as_str());
    tensors.chain(plan.bytes.iter().map(|(_, wanted)| wanted.as_str()))
}

/// The destinations of all items. A destination may have many items and is
/// filled as a whole.
fn acquire<'i, 'a>(
    planner: &mut dyn LoadPlanner<'a>,
    items: &'i [ReadItem],
    destinations: &mut Vec<(&'i ReadItem, Destination<'a>)>,
) -> Result<(), CheckpointError> {
    for item in items {
        match destinations.last() {
            Some((last, _)) if last.destination == item.destination => {
                if last.storage.name != item.storage.name {
                    return Err(CheckpointError::LoadPlan(LoadPlanError::TwoSources {
                        name: item.destination.name.clone(),
                        first: last.storage.name.clone(),
                        second: item.storage.name.clone(),
                    }));
                }
            }
            _ => destinations.push((item, planner.acquire_tensor(item)?)),
        }
    }
    Ok(())
}

/// Which rank reads each replicated tensor. Every rank reads tensors without an
/// entry itself.
#[derive(Debug, Default)]
struct ReplicaReaders(BTreeMap<String, Vec<usize>>);

impl ReplicaReaders {
    fn new(source: &Source, state: &LoadState<'_>, gang: &dyn Gang, replicas: ReplicaReads) -> Self {
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

    fn reader(&self, name: &str) -> Option<usize> {
        self.0.get(name).map(|ranks| ranks[0])
    }

    /// Sends tensors that this rank read for others, and receives those that
    /// they read for it. Sends never wait, so any order works that is the same
    /// on all ranks.
    fn exchange(
        &self,
        destinations: &mut [(&ReadItem, Destination<'_>)],
        gang: &dyn Gang,
        sums: Option<&ChunkSums>,
    ) -> Result<u64, CheckpointError> {
        const TAG: u32 = 0x5d20_0000;
        let mut received = 0;
        for (item, destination) in destinations {
            let Some(ranks) = self.0.get(&item.destination.name) else { continue };
            if ranks[0] == gang.rank() {
                for &other in &ranks[1..] {
                    gang.send_slice(destination.bytes, other, TAG)?;
                }
            } else {
                gang.recv(destination.bytes, ranks[0], TAG)?;
                received += destination.bytes.len() as u64;
                if let Some(sums) = sums {
                    sums.add_checked(
                        &item.storage.name,
                        &destination.region,
                        destination.dtype,
                        destination.bytes,
                    );
                }
            }
        }
        Ok(received)
    }
}
