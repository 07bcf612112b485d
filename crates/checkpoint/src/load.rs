//! Loading onto any mesh from any source.

mod check;
mod fill;
mod groups;
mod planning;
mod replicas;

use weightloom_gang::Gang;

use crate::chunk_sums::ChunkSums;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::formats::Source;
use crate::observer::Observer;
use crate::plan::{
    LoadPlanError, LoadPlanner, LoadPlannerFactory, LoadState, MissingKeys, PlannerCalls,
    StandardLoadPlanner, UnexpectedKeys,
};
use crate::read::{ReadOptions, ReadReport};
use crate::verify::{Damage, check_sums};
use fill::{Fill, FillReader};
pub use groups::load_groups;
use planning::{CheckedPlan, PlanOrigin};
use replicas::{ReplicaCounts, ReplicaReaders, replica_counts};

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

impl std::ops::AddAssign for LoadReport {
    fn add_assign(&mut self, other: Self) {
        let ReadReport { read, delivered, requests } = other.read;
        self.read.read += read;
        self.read.delivered += delivered;
        self.read.requests += requests;
        self.received += other.received;
        self.verified += other.verified;
    }
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
    // Memory of several parts is filled item by item, as users' planners have it.
    let origin = if state.has_parts() { PlanOrigin::Custom } else { PlanOrigin::Standard };
    let mut planner = StandardLoadPlanner::new(state);
    planner.missing = options.missing;
    planner.unexpected = options.unexpected;
    Load { source, origin, replicas, replica_counts, gang, options, observer }.run(&mut planner)
}

/// Loads with a custom planner. Every rank of the gang.
///
/// Reads nothing before the plans of all ranks have been checked.
pub fn load_with<'a>(
    source: &Source,
    planner: &mut dyn LoadPlanner<'a>,
    gang: &dyn Gang,
    options: &LoadOptions,
    observer: &dyn Observer,
) -> Result<LoadReport, CheckpointError> {
    let (replicas, replica_counts) = (ReplicaReaders::default(), ReplicaCounts::new());
    let origin = PlanOrigin::Custom;
    Load { source, origin, replicas, replica_counts, gang, options, observer }.run(planner)
}

/// Loads with the planner of a factory. Every rank of the gang.
pub fn load_planned(
    source: &Source,
    state: LoadState<'_>,
    factory: &dyn LoadPlannerFactory,
    gang: &dyn Gang,
    options: &LoadOptions,
    observer: &dyn Observer,
) -> Result<LoadReport, CheckpointError> {
    let name = PlannerCalls::new(|| factory.name());
    // The default planner's reads can be shared among replicas.
    if name.is_standard() {
        return load(source, state, gang, options, observer);
    }
    let mut planner = name.ask("planner", || factory.planner(state, options))?;
    load_with(source, &mut *planner, gang, options, observer)
}

/// A load on one rank.
struct Load<'l> {
    source: &'l Source,
    origin: PlanOrigin,
    replicas: ReplicaReaders,
    replica_counts: ReplicaCounts,
    gang: &'l dyn Gang,
    options: &'l LoadOptions,
    observer: &'l dyn Observer,
}

impl Load<'_> {
    fn run<'a>(&self, planner: &mut dyn LoadPlanner<'a>) -> Result<LoadReport, CheckpointError> {
        let Self { source, gang, .. } = *self;
        let calls = PlannerCalls::new(|| planner.name());
        let checked = planning::plan(source, planner, &calls, self.origin, gang)?;
        let sums = match (&source.manifest, self.options.verify) {
            (Some(manifest), Verify::Checksums) => {
                let tensors = manifest.tensors.iter().filter(|(name, _)| !checked.reread.contains(*name));
                let tensors = tensors.map(|(name, tensor)| (name.as_str(), tensor.dtype, &tensor.shape));
                Some(ChunkSums::new(manifest.chunk_size, tensors))
            }
            _ => None,
        };
        let mut report = collective_result(gang, self.fill(planner, &calls, &checked, sums.as_ref()))?;
        if let (Some(manifest), Some(sums)) = (&source.manifest, sums) {
            let checked = check_sums(manifest, sums, &self.replica_counts, gang)?;
            report.verified = checked.bytes;
            let whole = match checked.damage.as_slice() {
                [] => Ok(()),
                damage => Err(CheckpointError::Damaged(Damage { chunks: damage.to_vec() })),
            };
            collective_result(gang, whole)?;
        }
        let applied = checked.plan.bytes.iter().try_for_each(|(stored, wanted)| {
            let missing = || LoadPlanError::NoSuchItem { name: stored.clone() };
            let bytes = source.read_bytes(stored)?.ok_or_else(missing)?;
            calls.run("apply_bytes", || planner.apply_bytes(wanted, bytes))
        });
        collective_result(gang, applied)?;
        Ok(report)
    }

    /// Fills the destinations of all items.
    fn fill<'a>(
        &self,
        planner: &mut dyn LoadPlanner<'a>,
        calls: &PlannerCalls,
        checked: &CheckedPlan,
        sums: Option<&ChunkSums>,
    ) -> Result<LoadReport, CheckpointError> {
        let mut fills: Vec<Fill<'_, 'a>> = Vec::new();
        let reader =
            FillReader { source: self.source, options: &self.options.read, sums, observer: self.observer };
        let read = fill::acquire(planner, calls, checked, &mut fills).and_then(|()| {
            let rank = self.gang.rank();
            let is_ours = |name: &str| self.replicas.reader(name).is_none_or(|reader| reader == rank);
            reader.read(&mut fills, is_ours)
        });
        // Fail together before waiting for bytes of another rank.
        let read = collective_result(self.gang, read)?;
        let received = self.replicas.exchange(&mut fills, self.gang, sums)?;
        for Fill { item, destination, .. } in fills {
            calls.run("apply_tensor", || planner.apply_tensor(item, destination))?;
        }
        Ok(LoadReport { read, received, ..LoadReport::default() })
    }
}
