//! The distributed tensor.

use std::fmt;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Device, Element, Tensor, TensorError};

use crate::comm_log::Pass;
use crate::dist_context::{DistContext, locked};
use crate::error::{DTensorError, Result};
use crate::nan_check::NanCheck;
use crate::parameter::{GradientSlot, Release, Role};
use crate::redistribute::between_meshes::between_meshes;
use crate::redistribute::{Axes, Request};
use crate::spec::DTensorSpec;

/// A tensor distributed over ranks as its layout says. Every rank holds a local
/// tensor: its shard, a replica, or its share of a pending reduction.
///
/// ```
/// use weightloom_dtensor::{DTensor, DTensorError, DistContext, backward};
/// use weightloom_gang::{GangOptions, threads};
/// use weightloom_layout::{Layout, Mesh, Placement};
/// use weightloom_tensor::Tensor;
///
/// let results = threads::run(2, GangOptions::default(), |gang| {
///     let dist = DistContext::new(gang);
///     let mesh = Mesh::new(&[("dp", 2)])?;
///     let rows = Layout::new(mesh, &[Placement::Shard(0)])?;
///     let whole = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[4, 1])?;
///     let x = DTensor::distribute(&dist, &whole, rows)?.requires_grad();
///     assert_eq!(&x.to_local().shape()[..], [2, 1]);
///     let loss = x.mul(&x)?.sum_all()?;
///     let gradients = backward([(loss.clone(), None)])?;
///     let gradient = gradients.of(&x).expect("the loss depends on x")?;
///     Ok::<_, DTensorError>((loss.item::<f32>()?, gradient.full_tensor()?.to_vec::<f32>()?))
/// })
/// .expect("no rank panics");
/// assert!(results.into_iter().all(|result| result == Ok((30.0, vec![2.0, 4.0, 6.0, 8.0]))));
/// ```
#[derive(Clone)]
pub struct DTensor(Arc<Inner>);

struct Inner {
    local: Tensor,
    spec: Arc<DTensorSpec>,
    dist: Arc<DistContext>,
    /// The tensor that this one was redistributed from.
    source: Option<DTensor>,
    /// The local tensor lifted along some axes, as far as it was asked for.
    lifted: Mutex<SmallVec<[(Axes, Tensor); 1]>>,
    /// Of a parameter: its prefetched form and its accumulated gradient.
    slot: Option<Arc<GradientSlot>>,
    release: Release,
    nan_check: Option<Arc<NanCheck>>,
}

impl Inner {
    fn new(dist: &Arc<DistContext>, local: Tensor, spec: Arc<DTensorSpec>) -> Self {
        Self {
            local,
            spec,
            dist: Arc::clone(dist),
            source: None,
            lifted: Mutex::default(),
            slot: None,
            release: Release::Keep,
            nan_check: dist.nan_check().cloned(),
        }
    }
}

impl DTensor {
    /// Wraps the local tensors that ranks hold. Nothing is communicated.
    pub fn from_local(dist: &Arc<DistContext>, local: Tensor, layout: Layout, shape: &Shape) -> Result<Self> {
        let spec = dist.spec(layout, shape, local.dtype())?;
        Self::wrapped("from_local", dist, local, spec)
    }

    /// Distributes a tensor that every rank holds whole: each rank keeps its
    /// shard, on the context's device, and nothing is communicated.
    pub fn distribute(dist: &Arc<DistContext>, whole: &Tensor, layout: Layout) -> Result<Self> {
        let replicated = Layout::replicated(layout.mesh());
        let whole = Self::from_local(dist, whole.clone(), replicated, &whole.shape().clone())?;
        let shard = whole.redistribute(layout)?;
        match shard.device() {
            Device::Meta => Ok(shard),
            _ => shard.to(dist.device()),
        }
    }

    /// The same tensor with the local tensor of this rank on another device.
    pub fn to(&self, device: Device) -> Result<Self> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let Inner { local, spec, dist, nan_check, .. } = &*self.0;
        Ok(Self(Arc::new(Inner {
            nan_check: nan_check.clone(),
            ..Inner::new(dist, local.to(device)?, Arc::clone(spec))
        })))
    }

    pub(crate) fn wrapped(
        op: &'static str,
        dist: &Arc<DistContext>,
        local: Tensor,
        spec: Arc<DTensorSpec>,
    ) -> Result<Self> {
        if local.dtype() != spec.dtype() {
            let (found, expected) = (local.dtype(), spec.dtype());
            return Err(DTensorError::LocalDType { op, found, expected });
        }
        if local.shape() != spec.local_shape() {
            return Err(DTensorError::LocalShape {
                op,
                rank: dist.rank(),
                found: local.shape().clone(),
                expected: spec.local_shape().clone(),
                shape: spec.shape().clone(),
                layout: spec.layout(),
            });
        }
        Ok(Self(Arc::new(Inner::new(dist, local, spec))))
    }

    /// Another local tensor of the same spec, with the same NaN check.
    fn with_local(&self, local: Tensor) -> Inner {
        let Inner { spec, dist, nan_check, .. } = &*self.0;
        Inner { nan_check: nan_check.clone(), ..Inner::new(dist, local, Arc::clone(spec)) }
    }

    /// This tensor as a parameter of a model, to be [used](Self::used) in other
    /// layouts and dtypes.
    pub fn parameter(&self, role: Role) -> Self {
        let local = match role {
            Role::Trained => self.0.local.requires_grad(),
            Role::Frozen => self.0.local.detach(),
        };
        Self(Arc::new(Inner { slot: Some(Arc::default()), ..self.with_local(local) }))
    }

    pub(crate) fn slot(&self) -> Option<&Arc<GradientSlot>> {
        self.0.slot.as_ref()
    }

    /// Whether gradients accumulate in its slot.
    pub(crate) fn is_trained(&self) -> bool {
        self.0.slot.is_some() && self.0.local.is_parameter()
    }

    /// A parameter as a computation uses it: in another dtype and another
    /// layout, usually gathered. Takes the [prefetched](Self::prefetch) form if
    /// there is one. With [`Release::AfterUse`] the tape does not keep the
    /// gathered form but gathers it again where a gradient needs it; on another mesh
    /// it keeps it.
    pub fn used(&self, layout: Layout, dtype: DType, release: Release) -> Result<Self> {
        let Inner { local, spec, dist, nan_check, .. } = &*self.0;
        if layout == spec.layout() && dtype == spec.dtype() {
            return Ok(self.clone());
        }
        if layout.mesh() != spec.layout().mesh() {
            return self.used(spec.layout(), dtype, release)?.redistribute(layout);
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
            nan_check: nan_check.as_ref(),
        };
        let local = request.run(local, None)?;
        if let Some(check) = nan_check {
            check.check(dist.rank(), "use", Pass::Forward, &local)?;
        }
        let source = Some(self.clone());
        let nan_check = nan_check.clone();
        Ok(Self(Arc::new(Inner { source, release, nan_check, ..Inner::new(dist, local, target) })))
    }

    /// The tensor of this rank: its shard, a replica, or its share of a pending
    /// reduction.
    pub fn to_local(&self) -> &Tensor {
        &self.0.local
    }

    /// Mesh and placements.
    pub fn layout(&self) -> Layout {
        self.0.spec.layout()
    }

    /// The global shape.
    pub fn shape(&self) -> &Shape {
        self.0.spec.shape()
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.0.spec.dtype()
    }

    /// The device of the local tensor.
    pub fn device(&self) -> Device {
        self.0.local.device()
    }

    /// Layout, shape and dtype together.
    pub fn spec(&self) -> &Arc<DTensorSpec> {
        &self.0.spec
    }

    /// The context it belongs to.
    pub fn dist(&self) -> &Arc<DistContext> {
        &self.0.dist
    }

    /// The check that operations on this tensor run, if any.
    pub fn nan_check(&self) -> Option<&Arc<NanCheck>> {
        self.0.nan_check.as_ref()
    }

    /// This tensor with a check: it runs on the results of all operations on
    /// this tensor, on the results of operations on those, and so on.
    pub fn with_nan_check(&self, check: &Arc<NanCheck>) -> Self {
        let source = self.0.source.clone();
        let (slot, release) = (self.0.slot.clone(), self.0.release);
        let nan_check = Some(Arc::clone(check));
        Self(Arc::new(Inner { source, slot, release, nan_check, ..self.with_local(self.0.local.clone()) }))
    }

    /// A tensor that no one else holds yet, with the check of its operands.
    pub(crate) fn checked_by(mut self, check: Option<&Arc<NanCheck>>) -> Self {
        if let Some(check) = check
            && let Some(inner) = Arc::get_mut(&mut self.0)
        {
            inner.nan_check = Some(Arc::clone(check));
        }
        self
    }

    /// This tensor as a leaf whose gradient is wanted.
    pub fn requires_grad(&self) -> Self {
        Self(Arc::new(self.with_local(self.0.local.requires_grad())))
    }

    /// The same values, cut off from the tape.
    pub fn detach(&self) -> Self {
        Self(Arc::new(self.with_local(self.0.local.detach())))
    }

    /// Whether gradients flow back through it.
    pub fn tracks_gradient(&self) -> bool {
        self.0.local.tracks_gradient()
    }

    /// The same tensor in another layout, by the cheapest plan. Gradients are
    /// redistributed back.
    ///
    /// The layout may be on another mesh of the same ranks: another shape, other axes,
    /// another order.
    pub fn redistribute(&self, layout: Layout) -> Result<Self> {
        if layout.mesh() != self.layout().mesh() {
            return between_meshes("redistribute", self, layout);
        }
        self.redistribute_for("redistribute", layout, self.nan_check())
    }

    /// The same, on behalf of an operation.
    pub(crate) fn redistribute_for(
        &self,
        op: &'static str,
        layout: Layout,
        nan_check: Option<&Arc<NanCheck>>,
    ) -> Result<Self> {
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
            nan_check,
        };
        let local = request.run(local, None)?;
        if let Some(check) = nan_check {
            check.check(dist.rank(), op, Pass::Forward, &local)?;
        }
        let moved = Inner { source: Some(self.clone()), ..Inner::new(dist, local, target) };
        Ok(Self(Arc::new(moved)).checked_by(nan_check))
    }

    /// The local tensor for an operation of which each rank along some axes
    /// computes a part, so that its gradient is a sum over those ranks.
    pub(crate) fn lifted(
        &self,
        op: &'static str,
        axes: Axes,
        nan_check: Option<&Arc<NanCheck>>,
    ) -> Result<Tensor> {
        let Inner { local, spec, dist, source, lifted, slot, release, .. } = &*self.0;
        if !local.tracks_gradient() || axes.is_empty() && !self.is_trained() {
            return Ok(local.clone());
        }
        if let Some((_, tensor)) = locked(lifted).iter().find(|(of, _)| *of == axes) {
            return Ok(tensor.clone());
        }
        // Start from the source, so that a sum and a slice become one step.
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
            nan_check,
        };
        let tensor = request.run(input, Some(local.detach()))?;
        // A parameter outlives the tape that a lifted tensor belongs to, and a
        // tensor made while nothing is recorded belongs to no tape.
        if tensor.tracks_gradient() && !local.is_parameter() {
            locked(lifted).push((axes, tensor.clone()));
        }
        Ok(tensor)
    }

    /// Changes the local tensor, in place unless the tensor is shared. Shape and
    /// dtype must stay the same.
    pub fn change_local(
        &mut self,
        change: impl FnOnce(&mut Tensor) -> Result<(), TensorError>,
    ) -> Result<()> {
        if let Some(slot) = self.slot() {
            slot.discard_prefetched();
        }
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.source = None;
            locked(&inner.lifted).clear();
            return Ok(change(&mut inner.local)?);
        }
        let mut local = self.0.local.clone();
        change(&mut local)?;
        let (slot, release) = (self.0.slot.clone(), self.0.release);
        *self = Self(Arc::new(Inner { slot, release, ..self.with_local(local) }));
        Ok(())
    }

    /// The whole tensor, on every rank.
    pub fn full_tensor(&self) -> Result<Tensor> {
        let replicated = Layout::replicated(self.layout().mesh());
        let whole = self.redistribute_for("full_tensor", replicated, self.nan_check())?;
        Ok(whole.0.local.clone())
    }

    /// The only element of a tensor with one element.
    pub fn item<T: Element>(&self) -> Result<T> {
        Ok(self.full_tensor()?.item()?)
    }
}

impl fmt::Debug for DTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DTensor({} {} as {})", self.shape(), self.dtype(), self.layout())
    }
}
