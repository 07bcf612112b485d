//! The distributed tensor itself.

use std::fmt;
use std::sync::{Arc, Mutex};

use shardloom_layout::{DType, Layout, Shape};
use shardloom_tensor::{Device, Element, Tensor, TensorError};
use smallvec::SmallVec;

use crate::bill::Pass;
use crate::error::DTensorError;
use crate::kind::Kind;
use crate::moves::{Axes, Request};
use crate::ranks::{Ranks, locked};

/// A tensor of which every rank holds a part, as a layout says.
#[derive(Clone)]
pub struct DTensor(Arc<Inner>);

struct Inner {
    local: Tensor,
    kind: Arc<Kind>,
    ranks: Arc<Ranks>,
    /// What it was moved from, if it was.
    source: Option<DTensor>,
    /// Its local part lifted along some axes, as far as it was asked for.
    lifted: Mutex<SmallVec<[(Axes, Tensor); 1]>>,
}

impl DTensor {
    /// A distributed tensor from the parts that ranks hold. Nothing moves.
    pub fn from_local(
        ranks: &Arc<Ranks>,
        local: Tensor,
        layout: Layout,
        shape: &Shape,
    ) -> Result<Self, DTensorError> {
        let kind = ranks.kind(layout, shape, local.dtype())?;
        Self::wrapped("from_local", ranks, local, kind)
    }

    /// Distributes a tensor that every rank has whole. Nothing moves; each rank
    /// keeps its part.
    pub fn distribute(ranks: &Arc<Ranks>, whole: &Tensor, layout: Layout) -> Result<Self, DTensorError> {
        let replicated = Layout::replicated(layout.mesh());
        Self::from_local(ranks, whole.clone(), replicated, &whole.shape().clone())?.redistribute(layout)
    }

    pub(crate) fn wrapped(
        op: &'static str,
        ranks: &Arc<Ranks>,
        local: Tensor,
        kind: Arc<Kind>,
    ) -> Result<Self, DTensorError> {
        if local.dtype() != kind.dtype() {
            let (found, expected) = (local.dtype(), kind.dtype());
            return Err(DTensorError::DTypes { op, found, expected });
        }
        if local.shape() != kind.local_shape() {
            return Err(DTensorError::Local {
                op,
                rank: ranks.rank(),
                found: local.shape().clone(),
                expected: kind.local_shape().clone(),
                shape: kind.shape().clone(),
                layout: kind.layout(),
            });
        }
        Ok(Self::new(ranks, local, kind, None))
    }

    fn new(ranks: &Arc<Ranks>, local: Tensor, kind: Arc<Kind>, source: Option<Self>) -> Self {
        let lifted = Mutex::default();
        Self(Arc::new(Inner { local, kind, ranks: Arc::clone(ranks), source, lifted }))
    }

    /// The part that this rank holds. Where values are pending it is this
    /// rank's share of them.
    pub fn to_local(&self) -> &Tensor {
        &self.0.local
    }

    /// Who holds what.
    pub fn layout(&self) -> Layout {
        self.0.kind.layout()
    }

    /// The shape of the whole tensor.
    pub fn shape(&self) -> &Shape {
        self.0.kind.shape()
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.0.kind.dtype()
    }

    /// The device of the local part.
    pub fn device(&self) -> Device {
        self.0.local.device()
    }

    /// Layout, shape and dtype together.
    pub fn kind(&self) -> &Arc<Kind> {
        &self.0.kind
    }

    /// The ranks it is distributed over.
    pub fn ranks(&self) -> &Arc<Ranks> {
        &self.0.ranks
    }

    /// The same tensor as a parameter, whose gradient is wanted.
    pub fn requires_grad(&self) -> Self {
        Self::new(&self.0.ranks, self.0.local.requires_grad(), Arc::clone(&self.0.kind), None)
    }

    /// The same values without a way back.
    pub fn detach(&self) -> Self {
        Self::new(&self.0.ranks, self.0.local.detach(), Arc::clone(&self.0.kind), None)
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
        let Inner { local, kind, ranks, .. } = &*self.0;
        if layout == kind.layout() {
            return Ok(self.clone());
        }
        if layout.mesh() != kind.layout().mesh() {
            return Err(DTensorError::Meshes { op, first: kind.layout(), other: layout });
        }
        let target = ranks.kind(layout, kind.shape(), kind.dtype())?;
        let request = Request {
            ranks,
            op,
            shape: kind.shape(),
            from: kind.layout(),
            to: layout,
            lifted: Axes::default(),
        };
        let local = request.run(local, None)?;
        ranks.check_numbers(op, Pass::Forward, &local)?;
        Ok(Self::new(ranks, local, target, Some(self.clone())))
    }

    /// The local part for a use of which each rank along some axes does a part.
    pub(crate) fn lifted(&self, op: &'static str, axes: Axes) -> Result<Tensor, DTensorError> {
        let Inner { local, kind, ranks, source, lifted } = &*self.0;
        if axes.is_empty() || !local.tracks_gradient() {
            return Ok(local.clone());
        }
        if let Some((_, tensor)) = locked(lifted).iter().find(|(of, _)| *of == axes) {
            return Ok(tensor.clone());
        }
        // From where it came, so that a sum and a cut become one step.
        let source = source.as_ref().filter(|source| source.layout().pending().all(|(_, op)| op.is_linear()));
        let (from, input) = source.map_or((kind.layout(), local), |it| (it.layout(), &it.0.local));
        let request = Request { ranks, op, shape: kind.shape(), from, to: kind.layout(), lifted: axes };
        let tensor = request.run(input, Some(local.detach()))?;
        // A parameter outlives the tape that a lifted form belongs to, and what
        // was made while nothing is recorded belongs to none.
        if tensor.tracks_gradient() && !local.is_parameter() {
            locked(lifted).push((axes, tensor.clone()));
        }
        Ok(tensor)
    }

    /// Changes the local part: in place, unless somebody else holds the tensor.
    pub(crate) fn change_local(
        &mut self,
        change: impl FnOnce(&mut Tensor) -> Result<(), TensorError>,
    ) -> Result<(), DTensorError> {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.source = None;
            locked(&inner.lifted).clear();
            return Ok(change(&mut inner.local)?);
        }
        let mut local = self.0.local.clone();
        change(&mut local)?;
        *self = Self::new(&self.0.ranks, local, Arc::clone(&self.0.kind), None);
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
