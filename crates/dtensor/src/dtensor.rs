//! The distributed tensor itself.

use std::fmt;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Device, Element, Tensor, TensorError};

use crate::comm_log::Pass;
use crate::dist_context::{DistContext, locked};
use crate::error::DTensorError;
use crate::parameter::{Release, Role, Slot};
use crate::redistribute::{Axes, Request};
use crate::spec::DTensorSpec;

/// A tensor of which every rank holds a part, as a layout says.
#[derive(Clone)]
pub struct DTensor(Arc<Inner>);

struct Inner {
    local: Tensor,
    spec: Arc<DTensorSpec>,
    dist: Arc<DistContext>,
    /// What it was moved from, if it was.
    source: Option<DTensor>,
    /// Its local part lifted along some axes, as far as it was asked for.
    lifted: Mutex<SmallVec<[(Axes, Tensor); 1]>>,
    /// Of a parameter, what is under way to it and from it.
    slot: Option<Arc<Slot>>,
    /// What becomes of it once it was used.
    release: Release,
}

impl DTensor {
    /// A distributed tensor from the parts that ranks hold. Nothing moves.
    pub fn from_local(
        dist: &Arc<DistContext>,
        local: Tensor,
        layout: Layout,
        shape: &Shape,
    ) -> Result<Self, DTensorError> {
        let spec = dist.spec(layout, shape, local.dtype())?;
        Self::wrapped("from_local", dist, local, spec)
    }

    /// Distributes a tensor that every rank has whole. Nothing moves; each rank
    /// keeps its part.
    pub fn distribute(dist: &Arc<DistContext>, whole: &Tensor, layout: Layout) -> Result<Self, DTensorError> {
        let replicated = Layout::replicated(layout.mesh());
        Self::from_local(dist, whole.clone(), replicated, &whole.shape().clone())?.redistribute(layout)
    }

    pub(crate) fn wrapped(
        op: &'static str,
        dist: &Arc<DistContext>,
        local: Tensor,
        spec: Arc<DTensorSpec>,
    ) -> Result<Self, DTensorError> {
        if local.dtype() != spec.dtype() {
            let (found, expected) = (local.dtype(), spec.dtype());
            return Err(DTensorError::DTypes { op, found, expected });
        }
        if local.shape() != spec.local_shape() {
            return Err(DTensorError::Local {
                op,
                rank: dist.rank(),
                found: local.shape().clone(),
                expected: spec.local_shape().clone(),
                shape: spec.shape().clone(),
                layout: spec.layout(),
            });
        }
        Ok(Self::new(dist, local, spec, None))
    }

    fn new(dist: &Arc<DistContext>, local: Tensor, spec: Arc<DTensorSpec>, source: Option<Self>) -> Self {
        let (lifted, slot, release) = (Mutex::default(), None, Release::Keep);
        Self(Arc::new(Inner { local, spec, dist: Arc::clone(dist), source, lifted, slot, release }))
    }

    /// The same tensor as a parameter, of which gathered forms come and go. See
    /// [`used`](Self::used).
    pub fn parameter(&self, role: Role) -> Self {
        let local = match role {
            Role::Trained => self.0.local.requires_grad(),
            Role::Frozen => self.0.local.detach(),
        };
        let Inner { spec, dist, .. } = &*self.0;
        Self(Arc::new(Inner {
            local,
            spec: Arc::clone(spec),
            dist: Arc::clone(dist),
            source: None,
            lifted: Mutex::default(),
            slot: Some(Arc::default()),
            release: Release::Keep,
        }))
    }

    pub(crate) fn slot(&self) -> Option<&Arc<Slot>> {
        self.0.slot.as_ref()
    }

    /// Whether gradients add up in its slot.
    pub(crate) fn is_trained(&self) -> bool {
        self.0.slot.is_some() && self.0.local.is_parameter()
    }

    /// A parameter as a computation uses it: in another dtype and another
    /// layout, usually gathered. What was [fetched ahead](Self::fetch_ahead) is
    /// taken. With [`Release::AfterUse`] the tape does not keep the gathered
    /// form; where a gradient needs it, it is gathered again.
    pub fn used(&self, layout: Layout, dtype: DType, release: Release) -> Result<Self, DTensorError> {
        let Inner { local, spec, dist, .. } = &*self.0;
        if layout == spec.layout() && dtype == spec.dtype() {
            return Ok(self.clone());
        }
        let target = dist.spec(layout, spec.shape(), dtype)?;
        let request = Request {
            dist,
            op: "use",
            shape: spec.shape(),
            from: spec.layout(),
            to: layout,
            lifted: Axes::default(),
            dtype,
            slot: self.slot(),
            release,
        };
        let local = request.run(local, None)?;
        dist.check_numbers("use", Pass::Forward, &local)?;
        Ok(Self(Arc::new(Inner {
            local,
            spec: target,
            dist: Arc::clone(dist),
            source: Some(self.clone()),
            lifted: Mutex::default(),
            slot: None,
            release,
        })))
    }

    /// The part that this rank holds. Where values are pending it is this
    /// rank's share of them.
    pub fn to_local(&self) -> &Tensor {
        &self.0.local
    }

    /// Who holds what.
    pub fn layout(&self) -> Layout {
        self.0.spec.layout()
    }

    /// The shape of the whole tensor.
    pub fn shape(&self) -> &Shape {
        self.0.spec.shape()
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.0.spec.dtype()
    }

    /// The device of the local part.
    pub fn device(&self) -> Device {
        self.0.local.device()
    }

    /// Layout, shape and dtype together.
    pub fn spec(&self) -> &Arc<DTensorSpec> {
        &self.0.spec
    }

    /// The ranks it is distributed over.
    pub fn dist(&self) -> &Arc<DistContext> {
        &self.0.dist
    }

    /// The same tensor as a parameter, whose gradient is wanted.
    pub fn requires_grad(&self) -> Self {
        Self::new(&self.0.dist, self.0.local.requires_grad(), Arc::clone(&self.0.spec), None)
    }

    /// The same values without a way back.
    pub fn detach(&self) -> Self {
        Self::new(&self.0.dist, self.0.local.detach(), Arc::clone(&self.0.spec), None)
    }

    /// Whether gradients flow back through it.
    pub fn tracks_gradient(&self) -> bool {
        self.0.local.tracks_gradient()
    }

    /// The same tensor in another layout, by the cheapest moves. Gradients move
    /// back.
    pub fn redistribute(&self, layout: Layout) -> Result<Self, DTensorError> {
        self.moved("redistribute", layout)
    }

    pub(crate) fn moved(&self, op: &'static str, layout: Layout) -> Result<Self, DTensorError> {
        let Inner { local, spec, dist, .. } = &*self.0;
        if layout == spec.layout() {
            return Ok(self.clone());
        }
        if layout.mesh() != spec.layout().mesh() {
            return Err(DTensorError::Meshes { op, first: spec.layout(), other: layout });
        }
        let target = dist.spec(layout, spec.shape(), spec.dtype())?;
        let request = Request {
            dist,
            op,
            shape: spec.shape(),
            from: spec.layout(),
            to: layout,
            lifted: Axes::default(),
            dtype: spec.dtype(),
            slot: self.slot(),
            release: Release::Keep,
        };
        let local = request.run(local, None)?;
        dist.check_numbers(op, Pass::Forward, &local)?;
        Ok(Self::new(dist, local, target, Some(self.clone())))
    }

    /// The local part for a use of which each rank along some axes does a part.
    pub(crate) fn lifted(&self, op: &'static str, axes: Axes) -> Result<Tensor, DTensorError> {
        let Inner { local, spec, dist, source, lifted, slot, release } = &*self.0;
        if !local.tracks_gradient() || axes.is_empty() && !self.is_trained() {
            return Ok(local.clone());
        }
        if let Some((_, tensor)) = locked(lifted).iter().find(|(of, _)| *of == axes) {
            return Ok(tensor.clone());
        }
        // From where it came, so that a sum and a cut become one step.
        let source = source.as_ref().filter(|source| source.layout().pending().all(|(_, op)| op.is_linear()));
        let (from, input, slot) =
            source.map_or((spec.layout(), local, slot.as_ref()), |it| (it.layout(), &it.0.local, it.slot()));
        let request = Request {
            dist,
            op,
            shape: spec.shape(),
            from,
            to: spec.layout(),
            lifted: axes,
            dtype: spec.dtype(),
            slot,
            release: *release,
        };
        let tensor = request.run(input, Some(local.detach()))?;
        // A parameter outlives the tape that a lifted form belongs to, and what
        // was made while nothing is recorded belongs to none.
        if tensor.tracks_gradient() && !local.is_parameter() {
            locked(lifted).push((axes, tensor.clone()));
        }
        Ok(tensor)
    }

    /// Changes the local part: in place, unless somebody else holds the tensor.
    /// It must stay of the same shape and dtype.
    pub fn change_local(
        &mut self,
        change: impl FnOnce(&mut Tensor) -> Result<(), TensorError>,
    ) -> Result<(), DTensorError> {
        if let Some(slot) = self.slot() {
            slot.forget_ahead();
        }
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.source = None;
            locked(&inner.lifted).clear();
            return Ok(change(&mut inner.local)?);
        }
        let mut local = self.0.local.clone();
        change(&mut local)?;
        let Inner { spec, dist, slot, release, .. } = &*self.0;
        *self = Self(Arc::new(Inner {
            local,
            spec: Arc::clone(spec),
            dist: Arc::clone(dist),
            source: None,
            lifted: Mutex::default(),
            slot: slot.clone(),
            release: *release,
        }));
        Ok(())
    }

    /// The whole tensor on every rank.
    pub fn full_tensor(&self) -> Result<Tensor, DTensorError> {
        let replicated = Layout::replicated(self.layout().mesh());
        Ok(self.moved("full_tensor", replicated)?.0.local.clone())
    }

    /// The only element of the whole tensor.
    pub fn item<T: Element>(&self) -> Result<T, DTensorError> {
        Ok(self.full_tensor()?.item()?)
    }
}

impl fmt::Debug for DTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DTensor({} {} as {})", self.shape(), self.dtype(), self.layout())
    }
}
