//! The ranks that tensors are distributed over, as one of them sees them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use weightloom_gang::Gang;
use weightloom_layout::{DType, Layout, Mesh, Plan, Prices, Shape, plan};
use weightloom_tensor::{Device, Tensor, TensorError, no_grad};

use crate::background::Background;
use crate::comm_log::{CommRecord, Pass};
use crate::dispatch::{Decisions, Key};
use crate::error::DTensorError;
use crate::registry::Registry;
use crate::spec::{DTensorSpec, SpecTable};

/// What happens when an operation needs an operand to be elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is moved, the cheapest way.
    #[default]
    Implicit,
    /// It is moved, and [`Ranks::take_warnings`] tells.
    Warn,
    /// That is an error.
    Explicit,
}

/// Which numbers results may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// Any.
    #[default]
    Any,
    /// No infinity and no NaN: the first operation that gives one is an error.
    /// Every result is looked at, which takes time.
    Finite,
    /// The same, but the first one is only noted, for
    /// [`Ranks::take_noted`], and all ranks go on.
    Noted,
}

/// When the gradients of trained parameters are summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientReduction {
    /// At the end of a step: more passes will add to them.
    #[default]
    Deferred,
    /// As soon as they are whole in the pass that is under way, its last one.
    DuringBackward,
}

/// The ranks that tensors are distributed over. Each rank has its own; all make
/// the same calls in the same order.
pub struct DistContext {
    gang: Option<Arc<dyn Gang>>,
    rank: usize,
    registry: Registry,
    mode: AtomicU8,
    numbers: AtomicU8,
    axes: Mutex<FxHashMap<(Mesh, usize), Axis>>,
    plans: Mutex<Plans>,
    specs: Mutex<SpecTable>,
    pub(crate) decisions: Mutex<Decisions>,
    warnings: Mutex<Vec<DTensorError>>,
    /// What went wrong inside a function of the tape.
    parked: Mutex<Option<DTensorError>>,
    /// Kept once it is asked for: a long run would fill memory with it.
    comm_log: Mutex<Option<Vec<CommRecord>>>,
    /// What goes on while this thread computes.
    background: OnceLock<Background>,
    settling: AtomicU8,
    /// Where in a model operations are, and the first that went wrong.
    place: Mutex<String>,
    noted: Mutex<Option<(String, DTensorError)>>,
}

/// Plans by source, target, shape and dtype.
type Plans = FxHashMap<(Layout, Layout, Shape, DType), Arc<Plan>>;

/// The gang along one axis of a mesh, and its members as mesh ranks.
#[derive(Clone)]
pub(crate) struct Axis {
    pub(crate) gang: Arc<dyn Gang>,
    pub(crate) peers: Arc<[usize]>,
}

pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DistContext {
    /// The ranks of a gang, with the built-in operations.
    pub fn new(gang: Arc<dyn Gang>) -> Arc<Self> {
        Self::with_registry(gang, Registry::built_in())
    }

    /// The ranks of a gang, with operations of the user's too.
    pub fn with_registry(gang: Arc<dyn Gang>, registry: Registry) -> Arc<Self> {
        let rank = gang.rank();
        Self::of(Some(gang), rank, registry)
    }

    /// One rank of many that do not run: for tensors without data, to see what
    /// would be computed and sent.
    pub fn dry_run(rank: usize, registry: Registry) -> Arc<Self> {
        Self::of(None, rank, registry)
    }

    fn of(gang: Option<Arc<dyn Gang>>, rank: usize, registry: Registry) -> Arc<Self> {
        Arc::new(Self {
            gang,
            rank,
            registry,
            mode: AtomicU8::new(0),
            numbers: AtomicU8::new(0),
            axes: Mutex::default(),
            plans: Mutex::default(),
            specs: Mutex::default(),
            decisions: Mutex::default(),
            warnings: Mutex::default(),
            parked: Mutex::default(),
            comm_log: Mutex::default(),
            background: OnceLock::new(),
            settling: AtomicU8::new(0),
            place: Mutex::default(),
            noted: Mutex::default(),
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The gang, unless this is a dry run.
    pub fn gang(&self) -> Option<&Arc<dyn Gang>> {
        self.gang.as_ref()
    }

    /// The operations there are.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What happens when data must move.
    pub fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Relaxed) {
            0 => Mode::Implicit,
            1 => Mode::Warn,
            _ => Mode::Explicit,
        }
    }

    /// Sets what happens when data must move, from here on.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Sets which numbers results may hold, from here on.
    pub fn set_numbers(&self, numbers: Numbers) {
        self.numbers.store(numbers as u8, Ordering::Relaxed);
    }

    /// Refuses results of an operation that hold what they may not.
    pub(crate) fn check_numbers(
        &self,
        op: &'static str,
        pass: Pass,
        local: &Tensor,
    ) -> Result<(), DTensorError> {
        let any = self.numbers.load(Ordering::Relaxed) == Numbers::Any as u8;
        if any || !local.dtype().is_float() || local.device() == Device::Meta {
            return Ok(());
        }
        // Only what is finite is nothing without itself.
        let nothing = no_grad(|| {
            let wide = local.detach().cast(DType::F64)?;
            wide.sub(&wide)?.sum_all()?.item::<f64>()
        })?;
        if nothing == 0.0 {
            return Ok(());
        }
        let error = DTensorError::NotFinite {
            op,
            pass,
            rank: self.rank,
            local: local.shape().clone(),
            dtype: local.dtype(),
        };
        if self.numbers.load(Ordering::Relaxed) == Numbers::Noted as u8 {
            let place = locked(&self.place).clone();
            locked(&self.noted).get_or_insert((place, error));
            return Ok(());
        }
        Err(error)
    }

    /// Whether results are looked at.
    pub fn looks_at_numbers(&self) -> bool {
        self.numbers.load(Ordering::Relaxed) != Numbers::Any as u8
    }

    /// Says in which part of a model operations are, for those who read notes.
    pub fn set_place(&self, place: &str) {
        if self.looks_at_numbers() {
            place.clone_into(&mut locked(&self.place));
        }
    }

    /// The first result that was not finite under [`Numbers::Noted`], and in
    /// which part of the model it was.
    pub fn take_noted(&self) -> Option<(String, DTensorError)> {
        locked(&self.noted).take()
    }

    /// The operations that were run so far, by name and in order.
    pub fn operations(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = locked(&self.decisions).keys().map(Key::op).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What moved unasked in [`Mode::Warn`] since the last call.
    pub fn take_warnings(&self) -> Vec<DTensorError> {
        std::mem::take(&mut locked(&self.warnings))
    }

    pub(crate) fn warn(&self, warning: DTensorError) {
        locked(&self.warnings).push(warning);
    }

    pub(crate) fn park(&self, error: DTensorError) {
        *locked(&self.parked) = Some(error);
    }

    /// The error that a function of the tape could only tell in words, or the
    /// one that came out of the tape.
    pub(crate) fn unpark(&self, error: TensorError) -> DTensorError {
        let parked = locked(&self.parked).take();
        match (error, parked) {
            (TensorError::Outside { reason, .. }, Some(parked)) if parked.to_string() == reason => parked,
            (error, _) => error.into(),
        }
    }

    /// Writes down every collective from here on, for [`take_bill`](Self::take_bill).
    pub fn enable_comm_log(&self) {
        locked(&self.comm_log).get_or_insert_default();
        if let Some(background) = self.background() {
            background.dist.enable_comm_log();
        }
    }

    /// Every collective of this rank since the last call, with its cause, if
    /// [`keep_bill`](Self::keep_bill) was called before.
    pub fn take_comm_log(&self) -> Vec<CommRecord> {
        let mut comm_log = locked(&self.comm_log).as_mut().map(std::mem::take).unwrap_or_default();
        if let Some(background) = self.background() {
            comm_log.extend(background.dist.take_comm_log());
        }
        comm_log
    }

    /// From here on, parameters of tensors on a mesh are fetched and their
    /// gradients summed on a thread of its own, beside the computation. Every
    /// rank calls this at the same point of its program. Results stay the same,
    /// bit for bit.
    pub fn overlap(self: &Arc<Self>, mesh: Mesh) -> Result<(), DTensorError> {
        let Some(gang) = &self.gang else { return Ok(()) };
        if self.background.get().is_some() || (0..mesh.ndim()).all(|axis| mesh.axis_size(axis) == 1) {
            return Ok(());
        }
        let behind = Self::with_registry(Arc::clone(gang), self.registry.clone());
        // Forming gangs is work of all ranks, so it is done now, by this thread.
        for axis in (0..mesh.ndim()).filter(|&axis| mesh.axis_size(axis) > 1) {
            behind.along(mesh, axis)?;
        }
        if locked(&self.comm_log).is_some() {
            behind.enable_comm_log();
        }
        // It was not there, and each rank is one thread.
        let _ = self.background.set(Background::new(behind));
        Ok(())
    }

    /// Whether [`overlap`](Self::overlap) was called and there are others.
    pub fn overlaps(&self) -> bool {
        self.background().is_some()
    }

    /// When gradients may be summed over ranks.
    pub fn gradient_reduction(&self) -> GradientReduction {
        match self.settling.load(Ordering::Relaxed) {
            0 => GradientReduction::Deferred,
            _ => GradientReduction::DuringBackward,
        }
    }

    /// Sets when gradients may be summed over ranks, from here on.
    pub fn set_gradient_reduction(&self, settling: GradientReduction) {
        self.settling.store(settling as u8, Ordering::Relaxed);
    }

    pub(crate) fn background(&self) -> Option<&Background> {
        self.background.get()
    }

    /// Waits until what goes on beside the computation is done.
    pub fn finish(&self) -> Result<(), DTensorError> {
        self.background().map_or(Ok(()), Background::finish)
    }

    pub(crate) fn record(&self, item: CommRecord) {
        if let Some(comm_log) = &mut *locked(&self.comm_log) {
            comm_log.push(item);
        }
    }

    pub(crate) fn spec(
        &self,
        layout: Layout,
        shape: &Shape,
        dtype: DType,
    ) -> Result<Arc<DTensorSpec>, DTensorError> {
        Ok(locked(&self.specs).of(layout, shape, dtype, self.rank)?)
    }

    pub(crate) fn plan(
        &self,
        from: Layout,
        to: Layout,
        shape: &Shape,
        dtype: DType,
    ) -> Result<Arc<Plan>, DTensorError> {
        let key = (from, to, shape.clone(), dtype);
        if let Some(plan) = locked(&self.plans).get(&key) {
            return Ok(Arc::clone(plan));
        }
        let found = Arc::new(plan(from, to, shape, dtype, Prices::default())?);
        locked(&self.plans).insert(key, Arc::clone(&found));
        Ok(found)
    }

    /// The gang along one axis of a mesh that this rank stands in, for
    /// collectives of one's own. All ranks of that gang ask for it at the same
    /// point of their program.
    pub fn gang_along(&self, mesh: Mesh, axis: usize) -> Result<Arc<dyn Gang>, DTensorError> {
        Ok(self.along(mesh, axis)?.gang)
    }

    /// The same, with its members.
    pub(crate) fn along(&self, mesh: Mesh, axis: usize) -> Result<Axis, DTensorError> {
        if let Some(axis) = locked(&self.axes).get(&(mesh, axis)) {
            return Ok(axis.clone());
        }
        let Some(gang) = &self.gang else { return Err(DTensorError::Dry { what: "a collective" }) };
        let peers = mesh.peers(self.rank, axis)?;
        let formed = Axis { gang: gang.sub_gang(&peers)?, peers: peers.into() };
        locked(&self.axes).insert((mesh, axis), formed.clone());
        Ok(formed)
    }
}
