//! Loading: onto any mesh, from any source.

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

/// How to load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// How to read.
    pub read: ReadOptions,
    /// What to do about missing names.
    pub missing: MissingKeys,
    /// What to do about unexpected names.
    pub unexpected: UnexpectedKeys,
    /// Whether checksums are compared, where the source has them.
    pub verify: Verify,
    /// Who reads what several ranks want.
    pub replicas: ReplicaReads,
}

/// Whether checksums are compared while loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Where the source has them.
    #[default]
    Checksums,
    /// Never.
    Skip,
}

/// Who reads what several ranks want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaReads {
    /// Each for itself from a filesystem, whose cache all share; one for all
    /// from places that are far away.
    #[default]
    Auto,
    /// Each for itself.
    Each,
    /// One reads and sends to the others.
    Once,
}

/// What a load did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// What this rank read.
    pub read: ReadReport,
    /// Bytes that this rank received from others instead of reading them.
    pub received: u64,
    /// Bytes of all ranks' tensors that checksums were compared for.
    pub verified: u64,
}

/// Loads what a state asks for. Every rank of the gang.
///
/// Nothing is read before every name, shape and layout is known to fit, on
/// every rank.
pub fn load(
    source: &Source,
    state: LoadState<'_>,
    gang: &dyn Gang,
    options: &LoadOptions,
    observer: &dyn Observer,
) -> Result<LoadReport, CheckpointError> {
    let copies = Shares::new(source, &state, gang, options.replicas);
    let layouts = layouts(&state);
    let mut planner = StandardLoadPlanner::new(state);
    planner.missing = options.missing;
    planner.unexpected = options.unexpected;
    load_planned(source, &mut planner, &copies, &layouts, gang, options, observer)
}

/// Loads with a planner of one's own. Every rank of the gang.
pub fn load_with<'a>(
    source: &Source,
    planner: &mut dyn LoadPlanner<'a>,
    gang: &dyn Gang,
    options: &LoadOptions,
    observer: &dyn Observer,
) -> Result<LoadReport, CheckpointError> {
    load_planned(source, planner, &Shares::default(), &BTreeMap::new(), gang, options, observer)
}

/// Tensors whose parts on all ranks make up so many copies of them.
type Layouts = BTreeMap<String, u64>;

fn layouts(state: &LoadState<'_>) -> Layouts {
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

fn load_planned<'a>(
    source: &Source,
    planner: &mut dyn LoadPlanner<'a>,
    shares: &Shares,
    layouts: &Layouts,
    gang: &dyn Gang,
    options: &LoadOptions,
    observer: &dyn Observer,
) -> Result<LoadReport, CheckpointError> {
    let index = &*source.index;
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
    let plan = collective_result(gang, planner.finalize(plan).map_err(CheckpointError::from))?;
    let sums = match (&source.manifest, options.verify) {
        (Some(manifest), Verify::Checksums) => Some(ChunkSums::new(
            manifest.chunk_size,
            manifest.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.dtype, &tensor.shape)),
        )),
        _ => None,
    };
    let read =
        acquire_and_read(source, planner, &plan.tensors, shares, gang, options, sums.as_ref(), observer);
    let mut report = collective_result(gang, read)?;
    if let (Some(manifest), Some(sums)) = (&source.manifest, sums) {
        let checked = check_sums(manifest, sums, layouts, gang)?;
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

#[allow(clippy::too_many_arguments, reason = "the one place where all of a load comes together")]
fn acquire_and_read<'a>(
    source: &Source,
    planner: &mut dyn LoadPlanner<'a>,
    items: &[ReadItem],
    shares: &Shares,
    gang: &dyn Gang,
    options: &LoadOptions,
    sums: Option<&ChunkSums>,
    observer: &dyn Observer,
) -> Result<LoadReport, CheckpointError> {
    let mut destinations = Vec::new();
    let read = acquire(planner, items, &mut destinations)
        .and_then(|()| read_own(source, &mut destinations, shares, gang.rank(), options, sums, observer));
    // Nobody waits for what another could not read.
    let read = collective_result(gang, read)?;
    let received = shares.exchange(&mut destinations, gang, sums)?;
    for (item, destination) in destinations {
        planner.apply_tensor(item, destination)?;
    }
    Ok(LoadReport { read, received, ..LoadReport::default() })
}

/// The destinations of all items. One may have many; it is filled as a whole.
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

/// Reads what this rank reads for itself and for others.
fn read_own(
    source: &Source,
    destinations: &mut [(&ReadItem, Destination<'_>)],
    shares: &Shares,
    rank: usize,
    options: &LoadOptions,
    sums: Option<&ChunkSums>,
    observer: &dyn Observer,
) -> Result<ReadReport, CheckpointError> {
    let mut wants = Vec::new();
    for (item, destination) in destinations {
        if shares.reader(&item.destination.name).is_some_and(|reader| reader != rank) {
            continue;
        }
        let missing = || LoadPlanError::NoSuchItem { name: item.storage.name.clone() };
        let entry = source.index.tensors().get(&item.storage.name).ok_or_else(missing)?;
        wants.push(ReadRequest {
            entry,
            name: &item.storage.name,
            region: destination.region.clone(),
            dtype: destination.dtype,
            into: destination.bytes,
        });
    }
    read_verified(source, wants, &options.read, sums, observer)
}

/// Which rank reads what several want. Names without an entry are read by
/// everyone for themselves.
#[derive(Debug, Default)]
struct Shares(BTreeMap<String, Vec<usize>>);

impl Shares {
    fn new(source: &Source, state: &LoadState<'_>, gang: &dyn Gang, replicas: ReplicaReads) -> Self {
        let far = source.storage.folder().is_none();
        let once = replicas == ReplicaReads::Once || replicas == ReplicaReads::Auto && far;
        if !once || gang.size() == 1 {
            return Self::default();
        }
        let mut shares = BTreeMap::new();
        for (name, slot) in state.slots() {
            let Slot::Tensor { spec, .. } = slot else { continue };
            let Sharding::Layout(layout) = spec.sharding else { continue };
            let Ok(mut ranks) = layout.replicas(gang.rank()) else { continue };
            if ranks.len() > 1 {
                // The work goes round among those who hold the same. By name:
                // ranks may ask for different numbers of things.
                ranks.sort_unstable();
                let turn = (digest_of(name.as_bytes()).0 % ranks.len() as u128) as usize;
                ranks.rotate_left(turn);
                shares.insert(name.clone(), ranks);
            }
        }
        Self(shares)
    }

    fn reader(&self, name: &str) -> Option<usize> {
        self.0.get(name).map(|ranks| ranks[0])
    }

    /// Sends what this rank read for others, and receives what they read for
    /// it. Sends never wait, so any order is good as long as all have the
    /// same.
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
