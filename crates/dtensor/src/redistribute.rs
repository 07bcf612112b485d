//! Moves between layouts, with their gradients.
//!
//! The gradient of a tensor has a layout that follows from the tensor's own:
//! where that is sharded it is sharded alike; where it is replicated it is
//! replicated; where it is a pending sum it is replicated too, because each
//! rank's share adds to the whole alike. A tensor that is used by each rank for
//! a part of the work alone is *lifted* there: its value is the same, and what
//! arrives as gradient is each rank's share of a sum.

pub(crate) mod local;

use std::sync::{Arc, Mutex};

use weightloom_layout::{DType, Layout, LayoutError, Placement, Placements, Plan, ReduceOp, greedy_plan};
use weightloom_tensor::{Context, Device, Function, Tensor, TensorError, apply};

use crate::comm_log::{Cause, Pass};
use crate::dist_context::{DistContext, locked};
use crate::error::DTensorError;
use crate::parameter::{Release, Slot};
use crate::redistribute::local::{combined, gathered, redistribute_local, with_placements};

/// A set of mesh axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Axes(u8);

impl Axes {
    pub(crate) fn insert(&mut self, axis: usize) {
        self.0 |= 1 << axis;
    }

    pub(crate) fn contains(self, axis: usize) -> bool {
        self.0 >> axis & 1 == 1
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The layout of the gradient of a tensor that is lifted along some axes.
pub(crate) fn gradient_layout(layout: Layout, lifted: Axes) -> Result<Layout, LayoutError> {
    let placements: Placements = layout
        .placements()
        .iter()
        .enumerate()
        .map(|(axis, placement)| match placement {
            Placement::Partial(_) => Placement::Replicate,
            Placement::Replicate if lifted.contains(axis) => Placement::Partial(ReduceOp::Sum),
            other => *other,
        })
        .collect();
    with_placements(layout, &placements)
}

/// The layout of the gradients of a trained parameter while they add up: each
/// rank has its share, and sums are made once.
pub(crate) fn share_layout(layout: Layout) -> Result<Layout, LayoutError> {
    let mut copies = Axes::default();
    (0..layout.mesh().ndim())
        .filter(|&axis| layout.mesh().axis_size(axis) > 1)
        .for_each(|axis| copies.insert(axis));
    gradient_layout(layout, copies)
}

/// A local part in another dtype, carried along a plan, unless that was done
/// ahead.
fn fetched(
    dist: &DistContext,
    slot: Option<&Arc<Slot>>,
    (plan, to): (&Plan, Layout),
    local: &Tensor,
    dtype: DType,
    cause: Cause,
) -> Result<Tensor, DTensorError> {
    if let Some(ahead) = slot.and_then(|slot| slot.take_ahead(to, dtype)) {
        return ahead.wait();
    }
    redistribute_local(dist, plan, local.detach().cast(dtype)?, cause)
}

/// The product of the sizes of axes with a pending average.
pub(crate) fn averaged(layout: Layout) -> f64 {
    let axes = layout.pending().filter(|(_, op)| *op == ReduceOp::Avg);
    axes.map(|(axis, _)| layout.mesh().axis_size(axis) as f64).product()
}

/// A move whose result is known. Its gradient moves back along a plan.
struct Redistribute {
    dist: Arc<DistContext>,
    op: &'static str,
    to: Layout,
    forth: Arc<Plan>,
    back: Arc<Plan>,
    factor: f64,
    /// Before, and behind.
    dtypes: [DType; 2],
    /// Of a parameter that is trained: where its gradients add up.
    slot: Option<Arc<Slot>>,
    release: Release,
    /// The result, until it is given out: the tape must not keep it alive.
    known: Mutex<Option<Tensor>>,
}

impl Function for Redistribute {
    fn name(&self) -> &'static str {
        "redistribute"
    }

    /// Not cheap, but dear to keep.
    fn is_cheap(&self) -> bool {
        self.release == Release::AfterUse
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        if self.is_cheap() {
            context.save(&[&inputs[0]]);
        }
        if let Some(known) = locked(&self.known).take() {
            return Ok(vec![known.detach()]);
        }
        let cause = Cause { op: self.op, pass: Pass::Backward };
        let forth = (&*self.forth, self.to);
        let made = fetched(&self.dist, self.slot.as_ref(), forth, &inputs[0], self.dtypes[1], cause);
        Ok(vec![made.map_err(|error| error.inside("redistribute", &self.dist))?])
    }

    fn backward(
        &self,
        _: Context,
        mut gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let Some(gradient) = gradients[0].take() else { return Ok(vec![None]) };
        let inside = |error: DTensorError| error.inside("redistribute", &self.dist);
        self.dist.check_numbers(self.op, Pass::Backward, &gradient).map_err(inside)?;
        let gradient = if self.factor == 1.0 { gradient } else { gradient.scale(self.factor)? };
        let cause = Cause { op: self.op, pass: Pass::Backward };
        match &self.slot {
            None => {
                // What is summed is summed in the dtype that it is kept in.
                let gradient = gradient.cast(self.dtypes[0])?;
                Ok(vec![Some(redistribute_local(&self.dist, &self.back, gradient, cause).map_err(inside)?)])
            }
            Some(slot) => {
                slot.add(&self.dist, &self.back, gradient, cause).map_err(inside)?;
                Ok(vec![None])
            }
        }
    }
}

/// Where a move comes from, goes to, and what asked for it.
pub(crate) struct Request<'a> {
    pub(crate) dist: &'a Arc<DistContext>,
    pub(crate) op: &'static str,
    pub(crate) shape: &'a weightloom_layout::Shape,
    pub(crate) from: Layout,
    pub(crate) to: Layout,
    /// Axes along which the result is lifted.
    pub(crate) lifted: Axes,
    /// What the result is to be.
    pub(crate) dtype: DType,
    /// Of a parameter: what was fetched ahead, and where gradients go.
    pub(crate) slot: Option<&'a Arc<Slot>>,
    /// Whether the tape keeps the result.
    pub(crate) release: Release,
}

impl Request<'_> {
    /// Moves a local part. With `known`, nothing moves before the backward pass.
    pub(crate) fn run(&self, local: &Tensor, known: Option<Tensor>) -> Result<Tensor, DTensorError> {
        let Self { dist, op, shape, from, to, lifted, dtype, slot, release } = *self;
        let cause = Cause { op, pass: Pass::Forward };
        if !local.tracks_gradient() {
            if let Some(known) = known {
                return Ok(known);
            }
            let plan = dist.plan(from, to, shape, dtype)?;
            let made = fetched(dist, slot, (&plan, to), local, dtype, cause)?;
            if release == Release::Keep {
                return Ok(made);
            }
            let (dist, slot, local) = (Arc::clone(dist), slot.cloned(), local.detach());
            return Ok(made.remade_by(move || {
                let cause = Cause { op, pass: Pass::Backward };
                fetched(&dist, slot.as_ref(), (&plan, to), &local, dtype, cause)
                    .map_err(|error| error.inside("redistribute", &dist))
            }));
        }
        let trained = slot.filter(|_| local.is_parameter());
        let mut new = to.pending().filter(|(axis, op)| from.placements()[*axis] != Placement::Partial(*op));
        if new.any(|(_, op)| !op.is_linear()) {
            return Err(DTensorError::NotDifferentiable { layout: to });
        }
        // What is not linear is combined first, with a rule of its own.
        let mut from = from;
        let mut local = local.clone();
        let pending: Vec<(usize, ReduceOp)> = from
            .pending()
            .filter(|(axis, op)| !op.is_linear() && to.placements()[*axis] != Placement::Partial(*op))
            .collect();
        for (axis, reduce) in pending {
            let mut placements = Placements::from_slice(from.placements());
            placements[axis] = Placement::Replicate;
            let combine = Combine { dist: Arc::clone(dist), cause: op, layout: from, axis, reduce };
            local = one(apply(combine, &[local]).map_err(|error| dist.unpark(error))?)?;
            from = with_placements(from, &placements)?;
        }
        let plan = dist.plan(from, to, shape, dtype)?;
        if plan.stages().is_empty() && lifted.is_empty() && trained.is_none() && dtype == local.dtype() {
            return Ok(local);
        }
        let of_to = gradient_layout(to, lifted)?;
        let of_from = match trained {
            None => gradient_layout(from, Axes::default())?,
            Some(_) => share_layout(from)?,
        };
        // Shares of what is not linear differ along its axis, so that no detour
        // may go along it.
        let back = match to.pending().all(|(_, op)| op.is_linear()) {
            true => dist.plan(of_to, of_from, shape, local.dtype())?,
            false => Arc::new(greedy_plan(of_to, of_from, shape, local.dtype())?),
        };
        // Outside the tape, so that errors keep their type.
        let known = match known {
            Some(known) => known,
            None => fetched(dist, slot, (&plan, to), &local, dtype, cause)?,
        };
        let function = Redistribute {
            dist: Arc::clone(dist),
            op,
            to,
            forth: plan,
            back,
            factor: averaged(to) / averaged(from),
            dtypes: [local.dtype(), dtype],
            slot: trained.cloned(),
            release,
            known: Mutex::new(Some(known)),
        };
        one(apply(function, &[local])?)
    }
}

fn one(mut outputs: Vec<Tensor>) -> Result<Tensor, DTensorError> {
    let found = outputs.len();
    outputs.pop().ok_or(DTensorError::Results { op: "redistribute", found, expected: 1 })
}

/// A pending maximum, minimum or product combined along one axis.
struct Combine {
    dist: Arc<DistContext>,
    cause: &'static str,
    layout: Layout,
    axis: usize,
    reduce: ReduceOp,
}

impl Combine {
    fn combined(&self, local: &Tensor, op: ReduceOp, pass: Pass) -> Result<Tensor, DTensorError> {
        let along = (self.layout.mesh(), self.axis);
        combined(&self.dist, along, local, op, Cause { op: self.cause, pass })
    }

    fn gradient(&self, context: &Context, gradient: &Tensor) -> Result<Tensor, DTensorError> {
        let [local, total] = context.saved() else {
            return Err(DTensorError::Results { op: "redistribute", found: 0, expected: 2 });
        };
        if self.reduce == ReduceOp::Prod {
            if local.device() == Device::Meta {
                return Ok(gradient.clone());
            }
            let along = self.dist.along(self.layout.mesh(), self.axis)?;
            // The product of the others, which is right for zeros too.
            let own = along.gang.rank();
            let others = gathered(&along, local)?;
            let others = others.iter().enumerate().filter(|(peer, _)| *peer != own);
            let mut share = gradient.clone();
            for (_, other) in others {
                share = share.mul(other)?;
            }
            return Ok(share);
        }
        // Ranks that hold the extreme share its gradient.
        let holds = local.eq(total)?.cast(local.dtype())?;
        let count = self.combined(&holds, ReduceOp::Sum, Pass::Backward)?;
        Ok(gradient.mul(&holds)?.div(&count)?)
    }
}

impl Function for Combine {
    fn name(&self) -> &'static str {
        "redistribute"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let local = inputs[0].detach();
        let total = self.combined(&local, self.reduce, Pass::Forward);
        let total = total.map_err(|error| error.inside("redistribute", &self.dist))?;
        context.save(&[&local, &total]);
        Ok(vec![total])
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let gradient =
            self.gradient(&context, gradient).map_err(|error| error.inside("redistribute", &self.dist))?;
        Ok(vec![Some(gradient)])
    }
}
