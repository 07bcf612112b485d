//! One rank's view of the ranks that tensors are distributed over.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weightloom_gang::Gang;
use weightloom_layout::{DType, Layout, Mesh, Plan, Shape};
use weightloom_tensor::Device;

use crate::background::Background;
use crate::comm_log::{CommLog, CommRecord};
use crate::error::{DTensorError, Result};
use crate::nan_check::NanCheck;
use crate::plan_cache::PlanCache;
use crate::process_groups::{AxisGroup, ProcessGroups};
use crate::registry::Registry;
use crate::spec::DTensorSpec;

/// What happens when an operation needs an operand in another layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedistributeMode {
    /// The operand is redistributed, by the cheapest plan.
    #[default]
    Implicit,
    /// As implicit, and [`DistContext::take_warnings`] returns a warning.
    Warn,
    /// The operation is an error.
    Explicit,
}

/// Options of a [`DistContext`].
#[derive(Clone, Default)]
pub struct DistOptions {
    /// The device of this rank: tensors that are distributed or drawn are placed there.
    pub device: Device,
    /// The operations and their sharding rules.
    pub registry: Registry,
    /// What happens when an operation needs an operand in another layout.
    pub redistribution: RedistributeMode,
    /// Checks the results of every operation, whatever the pass.
    pub nan_check: Option<Arc<NanCheck>>,
    /// Records every collective for [`DistContext::take_comm_log`]. The log
    /// grows until it is taken.
    pub log_comm: bool,
}

/// One rank's view of the ranks that tensors are distributed over: process
/// groups, cached plans, and the thread that communicates in the background.
///
/// Each rank has its own, and all ranks make the same calls in the same order.
///
/// ```
/// use weightloom_dtensor::{DTensor, DTensorError, DistContext};
/// use weightloom_gang::{GangOptions, solo};
/// use weightloom_layout::{Layout, Mesh, Placement};
/// use weightloom_tensor::Tensor;
///
/// let dist = DistContext::new(solo(GangOptions::default()));
/// let mesh = Mesh::new(&[("tp", 1)])?;
/// let whole = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let x = DTensor::distribute(&dist, &whole, Layout::new(mesh, &[Placement::Shard(0)])?)?;
/// assert_eq!(x.matmul(&x)?.full_tensor()?.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
/// # Ok::<(), DTensorError>(())
/// ```
pub struct DistContext {
    groups: ProcessGroups,
    options: DistOptions,
    cache: PlanCache,
    comm_log: CommLog,
    warnings: Mutex<Vec<DTensorError>>,
    background: OnceLock<Background>,
}

pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DistContext {
    /// A context over the ranks of a gang, with default options.
    pub fn new(gang: Arc<dyn Gang>) -> Arc<Self> {
        Self::with_options(gang, DistOptions::default())
    }

    /// A context over the ranks of a gang.
    pub fn with_options(gang: Arc<dyn Gang>, options: DistOptions) -> Arc<Self> {
        Self::from_groups(ProcessGroups::new(gang), options)
    }

    /// One rank of many that do not run: for meta tensors, to see what would be
    /// computed and sent.
    pub fn dry_run(rank: usize, options: DistOptions) -> Arc<Self> {
        Self::from_groups(ProcessGroups::dry_run(rank), options)
    }

    fn from_groups(groups: ProcessGroups, options: DistOptions) -> Arc<Self> {
        Arc::new(Self {
            groups,
            cache: PlanCache::default(),
            comm_log: if options.log_comm { CommLog::enabled() } else { CommLog::disabled() },
            warnings: Mutex::default(),
            background: OnceLock::new(),
            options,
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.groups.rank()
    }

    /// The device of this rank.
    pub fn device(&self) -> Device {
        self.options.device
    }

    /// The gang, unless this is a dry run.
    pub fn gang(&self) -> Option<&Arc<dyn Gang>> {
        self.groups.gang()
    }

    /// The operations and their sharding rules.
    pub fn registry(&self) -> &Registry {
        &self.options.registry
    }

    /// The check that tensors of this context start with.
    pub(crate) fn nan_check(&self) -> Option<&Arc<NanCheck>> {
        self.options.nan_check.as_ref()
    }

    /// The names of the operations dispatched so far, sorted.
    pub fn operations(&self) -> Vec<&'static str> {
        self.cache.operations()
    }

    /// Takes the implicit redistributions of [`RedistributeMode::Warn`] since
    /// the last call.
    pub fn take_warnings(&self) -> Vec<DTensorError> {
        std::mem::take(&mut locked(&self.warnings))
    }

    /// Applies the [`RedistributeMode`] to redistributions that were not asked
    /// for and need collectives.
    pub(crate) fn check_implicit(&self, op: &'static str, redistributions: &[String]) -> Result<()> {
        if redistributions.is_empty() || self.options.redistribution == RedistributeMode::Implicit {
            return Ok(());
        }
        let hidden = DTensorError::ImplicitRedistribution { op, redistributions: redistributions.to_vec() };
        if self.options.redistribution == RedistributeMode::Explicit {
            return Err(hidden);
        }
        locked(&self.warnings).push(hidden);
        Ok(())
    }

    /// Takes the collectives of this rank since the last call, in order, those
    /// of the background thread last. Empty without [`DistOptions::log_comm`].
    pub fn take_comm_log(&self) -> Vec<CommRecord> {
        let mut log = self.comm_log.take();
        if let Some(background) = self.background() {
            log.extend(background.dist.take_comm_log());
        }
        log
    }

    pub(crate) fn comm_log(&self) -> &CommLog {
        &self.comm_log
    }

    /// Starts a background thread that gathers parameters on a mesh and reduces
    /// their gradients, overlapping with computation. Every rank calls this at
    /// the same point of its program. Results keep their bits.
    pub fn overlap(&self, mesh: Mesh) -> Result<()> {
        let Some(gang) = self.gang() else { return Ok(()) };
        if self.overlaps() || (0..mesh.ndim()).all(|axis| mesh.axis_size(axis) == 1) {
            return Ok(());
        }
        let dist = Self::with_options(Arc::clone(gang), self.options.clone());
        // All ranks form gangs together, so form them now, on this thread.
        for axis in (0..mesh.ndim()).filter(|&axis| mesh.axis_size(axis) > 1) {
            dist.along(mesh, axis)?;
        }
        // A rank is one thread, so nothing was set since the check above.
        let _ = self.background.set(Background::new(dist));
        Ok(())
    }

    /// Whether [`overlap`](Self::overlap) started a background thread.
    pub fn overlaps(&self) -> bool {
        self.background().is_some()
    }

    pub(crate) fn background(&self) -> Option<&Background> {
        self.background.get()
    }

    /// Waits for the background thread to finish its jobs.
    pub fn finish(&self) -> Result<()> {
        self.background().map_or(Ok(()), Background::finish)
    }

    pub(crate) fn cache(&self) -> &PlanCache {
        &self.cache
    }

    pub(crate) fn spec(&self, layout: Layout, shape: &Shape, dtype: DType) -> Result<Arc<DTensorSpec>> {
        Ok(self.cache.spec(layout, shape, dtype, self.rank())?)
    }

    pub(crate) fn plan(&self, from: Layout, to: Layout, shape: &Shape, dtype: DType) -> Result<Arc<Plan>> {
        Ok(self.cache.plan(from, to, shape, dtype)?)
    }

    /// The gang along one axis of a mesh that contains this rank, for custom
    /// collectives. All ranks of that gang ask for it at the same point of their
    /// program.
    pub fn gang_along(&self, mesh: Mesh, axis: usize) -> Result<Arc<dyn Gang>> {
        Ok(self.along(mesh, axis)?.gang)
    }

    pub(crate) fn along(&self, mesh: Mesh, axis: usize) -> Result<AxisGroup> {
        self.groups.along(mesh, axis)
    }

    pub(crate) fn over(&self, mesh: Mesh) -> Result<AxisGroup> {
        self.groups.over(mesh)
    }
}
