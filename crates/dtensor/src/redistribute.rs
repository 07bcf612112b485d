//! Redistribution between layouts, with gradients.
//!
//! The layout of a gradient follows from the layout of its tensor: sharded where
//! the tensor is sharded, and replicated where the tensor is replicated or a
//! pending sum, because every rank's share counts alike in the sum. A tensor
//! that each rank uses for its part of the work alone is *lifted* along that
//! axis: its value stays the same, and the gradients that arrive are shares of a
//! sum.

pub(crate) mod between_meshes;
pub(crate) mod local;

use std::sync::{Arc, Mutex};

use weightloom_layout::{
    DType, Layout, LayoutError, Placement, Placements, Plan, ReduceOp, Shape, greedy_plan,
};
use weightloom_tensor::{Context, Device, Function, Tensor, TensorError, apply};

use crate::comm_log::{Cause, Pass};
use crate::dist_context::{DistContext, locked};
use crate::error::{DTensorError, Result};
use crate::nan_check::NanCheck;
use crate::parameter::{GradientSlot, Release};
use crate::redistribute::local::{all_gather, all_reduce, redistribute_local, with_placements};

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

/// The layout in which gradients of a trained parameter accumulate: each rank
/// has its share of a sum that is made once.
pub(crate) fn share_layout(layout: Layout) -> Result<Layout, LayoutError> {
    let mut axes = Axes::default();
    (0..layout.mesh().ndim())
        .filter(|&axis| layout.mesh().axis_size(axis) > 1)
        .for_each(|axis| axes.insert(axis));
    gradient_layout(layout, axes)
}

/// Casts and redistributes a local tensor, or takes its prefetched form.
fn gather(
    dist: &DistContext,
    slot: Option<&Arc<GradientSlot>>,
    (plan, to): (&Plan, Layout),
    local: &Tensor,
    dtype: DType,
    cause: Cause,
) -> Result<Tensor> {
    if let Some(prefetched) = slot.and_then(|slot| slot.take_prefetched(to, dtype)) {
        return prefetched.wait();
    }
    redistribute_local(dist, plan, local.detach().cast(dtype)?, cause)
}

/// The product of the sizes of axes with a pending average.
pub(crate) fn average_divisor(layout: Layout) -> f64 {
    let axes = layout.pending().filter(|(_, op)| *op == ReduceOp::Avg);
    axes.map(|(axis, _)| layout.mesh().axis_size(axis) as f64).product()
}

/// A redistribution on the tape. Its gradient is redistributed back.
struct Redistribute {
    dist: Arc<DistContext>,
    op: &'static str,
    to: Layout,
    forward: Arc<Plan>,
    backward: Arc<Plan>,
    factor: f64,
    input_dtype: DType,
    output_dtype: DType,
    /// Of a trained parameter: where gradients accumulate.
    slot: Option<Arc<GradientSlot>>,
    release: Release,
    nan_check: Option<Arc<NanCheck>>,
    /// The result, until `forward` returns it: the tape must not keep it alive.
    result: Mutex<Option<Tensor>>,
}

impl Function for Redistribute {
    fn name(&self) -> &'static str {
        "redistribute"
    }

    /// Gathering again takes time, but keeping the result takes more memory.
    fn is_cheap(&self) -> bool {
        self.release == Release::AfterUse
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        if self.is_cheap() {
            context.save(&[&inputs[0]]);
        }
        if let Some(result) = locked(&self.result).take() {
            return Ok(vec![result.detach()]);
        }
        let cause = Cause { op: self.op, pass: Pass::Backward };
        let plan = (&*self.forward, self.to);
        let result = gather(&self.dist, self.slot.as_ref(), plan, &inputs[0], self.output_dtype, cause);
        Ok(vec![result.map_err(|error| error.into_tensor_error("redistribute"))?])
    }

    fn backward(
        &self,
        _: Context,
        mut gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let Some(gradient) = gradients[0].take() else { return Ok(vec![None]) };
        let lower = |error: DTensorError| error.into_tensor_error("redistribute");
        if let Some(check) = &self.nan_check {
            check.check(self.dist.rank(), self.op, Pass::Backward, &gradient).map_err(lower)?;
        }
        let gradient = if self.factor == 1.0 { gradient } else { gradient.scale(self.factor)? };
        let cause = Cause { op: self.op, pass: Pass::Backward };
        match &self.slot {
            None => {
                // Sums over ranks are made in the dtype that the sum is kept in.
                let gradient = gradient.cast(self.input_dtype)?;
                let gradient = redistribute_local(&self.dist, &self.backward, gradient, cause);
                Ok(vec![Some(gradient.map_err(lower)?)])
            }
            Some(slot) => {
                slot.add(&self.dist, &self.backward, gradient, cause).map_err(lower)?;
                Ok(vec![None])
            }
        }
    }

    fn is_linear(&self, _: &Context) -> bool {
        true
    }
}

/// A redistribution to run.
pub(crate) struct Request<'a> {
    pub(crate) dist: &'a Arc<DistContext>,
    /// The operation that needs it.
    pub(crate) op: &'static str,
    pub(crate) shape: &'a Shape,
    pub(crate) from: Layout,
    pub(crate) to: Layout,
    /// Axes along which the result is lifted.
    pub(crate) lifted: Axes,
    /// The dtype of the result.
    pub(crate) dtype: DType,
    /// Of a parameter: its prefetched form and its accumulated gradient.
    pub(crate) slot: Option<&'a Arc<GradientSlot>>,
    /// Whether the tape keeps the result.
    pub(crate) release: Release,
    pub(crate) nan_check: Option<&'a Arc<NanCheck>>,
}

impl Request<'_> {
    /// Redistributes a local tensor. With a known `result`, nothing is
    /// communicated before the backward pass.
    pub(crate) fn run(&self, local: &Tensor, result: Option<Tensor>) -> Result<Tensor> {
        let Self { dist, op, shape, from, to, lifted, dtype, slot, release, nan_check } = *self;
        let cause = Cause { op, pass: Pass::Forward };
        if !local.tracks_gradient() {
            if let Some(result) = result {
                return Ok(result);
            }
            let plan = dist.plan(from, to, shape, dtype)?;
            let gathered = gather(dist, slot, (&plan, to), local, dtype, cause)?;
            if release == Release::Keep {
                return Ok(gathered);
            }
            let (dist, slot, local) = (Arc::clone(dist), slot.cloned(), local.detach());
            return Ok(gathered.recomputed_by(move || {
                let cause = Cause { op, pass: Pass::Backward };
                gather(&dist, slot.as_ref(), (&plan, to), &local, dtype, cause)
                    .map_err(|error| error.into_tensor_error("redistribute"))
            }));
        }
        let trained = slot.filter(|_| local.is_parameter());
        let mut new = to.pending().filter(|(axis, op)| from.placements()[*axis] != Placement::Partial(*op));
        if new.any(|(_, op)| !op.is_linear()) {
            return Err(DTensorError::NotDifferentiable { layout: to });
        }
        // Run non-linear reductions first: their gradient has another rule.
        let mut from = from;
        let mut local = local.clone();
        let pending: Vec<(usize, ReduceOp)> = from
            .pending()
            .filter(|(axis, op)| !op.is_linear() && to.placements()[*axis] != Placement::Partial(*op))
            .collect();
        for (axis, reduce) in pending {
            let mut placements = Placements::from_slice(from.placements());
            placements[axis] = Placement::Replicate;
            let reduction = NonLinearReduction { dist: Arc::clone(dist), op, layout: from, axis, reduce };
            local = one(apply(reduction, &[local])?)?;
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
        // Shares of a non-linear reduction differ along its axis, so the plan must not
        // take a detour along it.
        let backward = match to.pending().all(|(_, op)| op.is_linear()) {
            true => dist.plan(of_to, of_from, shape, local.dtype())?,
            false => Arc::new(greedy_plan(of_to, of_from, shape, local.dtype())?),
        };
        let result = match result {
            Some(result) => result,
            None => gather(dist, slot, (&plan, to), &local, dtype, cause)?,
        };
        let function = Redistribute {
            dist: Arc::clone(dist),
            op,
            to,
            forward: plan,
            backward,
            factor: average_divisor(to) / average_divisor(from),
            input_dtype: local.dtype(),
            output_dtype: dtype,
            slot: trained.cloned(),
            release,
            nan_check: nan_check.cloned(),
            result: Mutex::new(Some(result)),
        };
        one(apply(function, &[local])?)
    }
}

fn one(mut outputs: Vec<Tensor>) -> Result<Tensor> {
    let found = outputs.len();
    outputs.pop().ok_or(DTensorError::ResultCount { op: "redistribute", found, expected: 1 })
}

/// A pending maximum, minimum or product, reduced along one axis.
struct NonLinearReduction {
    dist: Arc<DistContext>,
    op: &'static str,
    layout: Layout,
    axis: usize,
    reduce: ReduceOp,
}

impl NonLinearReduction {
    fn all_reduce(&self, local: &Tensor, reduce: ReduceOp, pass: Pass) -> Result<Tensor> {
        let along = (self.layout.mesh(), self.axis);
        all_reduce(&self.dist, along, local, reduce, Cause { op: self.op, pass })
    }

    fn gradient(&self, context: &Context, gradient: &Tensor) -> Result<Tensor> {
        let [local, total] = context.saved() else {
            return Err(DTensorError::ResultCount { op: "redistribute", found: 0, expected: 2 });
        };
        if self.reduce == ReduceOp::Prod {
            if local.device() == Device::Meta {
                return Ok(gradient.clone());
            }
            let group = self.dist.along(self.layout.mesh(), self.axis)?;
            // The product of the other ranks' values, which is right for zeros too.
            let own = group.gang.rank();
            let values = all_gather(&group, local)?;
            let others = values.iter().enumerate().filter(|(peer, _)| *peer != own);
            let mut share = gradient.clone();
            for (_, other) in others {
                share = share.mul(other)?;
            }
            return Ok(share);
        }
        // Ranks that hold the extremum share its gradient.
        let holds = local.eq(total)?.cast(local.dtype())?;
        let count = self.all_reduce(&holds, ReduceOp::Sum, Pass::Backward)?;
        Ok(gradient.mul(&holds)?.div(&count)?)
    }
}

impl Function for NonLinearReduction {
    fn name(&self) -> &'static str {
        "redistribute"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let local = inputs[0].detach();
        let total = self.all_reduce(&local, self.reduce, Pass::Forward);
        let total = total.map_err(|error| error.into_tensor_error("redistribute"))?;
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
            self.gradient(&context, gradient).map_err(|error| error.into_tensor_error("redistribute"))?;
        Ok(vec![Some(gradient)])
    }
}
