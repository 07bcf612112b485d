//! Redistribution to another mesh of the same ranks, with gradients.

use std::sync::Arc;

use weightloom_layout::{Layout, Mesh, Plan, Step};
use weightloom_tensor::{Context, Function, Tensor, TensorError, apply};

use super::{Axes, one};
use crate::comm_log::{Cause, Pass};
use crate::dist_context::DistContext;
use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::nan_check::NanCheck;
use crate::redistribute::local::redistribute_local;

/// A tensor without pending reductions on its way to another mesh. Its gradient goes
/// the way back.
struct MeshTransfer {
    dist: Arc<DistContext>,
    op: &'static str,
    forward: Arc<Plan>,
    backward: Arc<Plan>,
    nan_check: Option<Arc<NanCheck>>,
}

impl MeshTransfer {
    fn run(&self, plan: &Plan, local: &Tensor, pass: Pass) -> Result<Tensor, TensorError> {
        let cause = Cause { op: self.op, pass };
        let check = |local: &Tensor| match &self.nan_check {
            Some(check) => check.check(self.dist.rank(), self.op, pass, local),
            None => Ok(()),
        };
        let moved = || {
            check(local)?;
            redistribute_local(&self.dist, plan, local.detach(), cause)
        };
        moved().map_err(|error: DTensorError| error.into_tensor_error("redistribute"))
    }
}

impl Function for MeshTransfer {
    fn name(&self) -> &'static str {
        "redistribute"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![self.run(&self.forward, &inputs[0], Pass::Forward)?])
    }

    fn backward(
        &self,
        _: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let back = |gradient: &Tensor| self.run(&self.backward, gradient, Pass::Backward);
        Ok(vec![gradients[0].as_ref().map(back).transpose()?])
    }

    fn is_linear(&self, _: &Context) -> bool {
        true
    }
}

/// Redistributes a tensor to a layout on another mesh. Pending reductions are made
/// before, within the old mesh, and seeded after, within the new one.
pub(crate) fn between_meshes(op: &'static str, tensor: &DTensor, layout: Layout) -> Result<DTensor> {
    let (dist, from) = (tensor.dist(), tensor.layout());
    check_same_ranks(op, from, layout)?;
    let (shape, dtype, nan_check) = (tensor.shape(), tensor.dtype(), tensor.nan_check());
    let plan = dist.plan(from, layout, shape, dtype)?;
    let exchange = plan.stages().iter().find(|stage| stage.step == Step::Exchange);
    let (before, after) = exchange.map_or((from, layout), |stage| (stage.before, stage.after));
    let transfer = MeshTransfer {
        dist: Arc::clone(dist),
        op,
        forward: dist.plan(before, after, shape, dtype)?,
        backward: dist.plan(after, before, shape, dtype)?,
        nan_check: nan_check.cloned(),
    };
    let reduced = tensor.redistribute_for(op, before, nan_check)?;
    // Gradients of a trained parameter accumulate where it is held.
    let local = reduced.lifted(op, Axes::default(), nan_check)?;
    let moved = one(apply(transfer, &[local])?)?;
    let moved = DTensor::wrapped(op, dist, moved, dist.spec(after, shape, dtype)?)?;
    moved.checked_by(nan_check).redistribute_for(op, layout, nan_check)
}

/// Checks that two meshes have the same ranks, in any order. The answer is the same
/// on all of them.
fn check_same_ranks(op: &'static str, from: Layout, to: Layout) -> Result<()> {
    let missing = |of: Mesh, other: Mesh| of.ranks().filter(move |&rank| other.position(rank).is_err()).min();
    let (first, other) = (from.mesh(), to.mesh());
    match missing(first, other).or_else(|| missing(other, first)) {
        Some(rank) => Err(DTensorError::MeshRanks { op, rank, from, to }),
        None => Ok(()),
    }
}
