//! Cross-entropy of logits that may be sharded by rows, by classes, or both.

mod vocab_parallel;

use std::sync::Arc;

use weightloom_layout::ReduceOp;
use weightloom_tensor::{CrossEntropy, Device, Tensor, apply};

use super::blank;
use crate::comm_log::{Cause, Pass};
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::redistribute::local::all_reduce;
use crate::redistribute::{Axes, gradient_layout};
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;
use vocab_parallel::VocabParallelCrossEntropy;

/// Losses of the shards of a batch are summed. Classes may be sharded: the local
/// computation reduces the log-sum-exp of each row over ranks.
fn cross_entropy(call: &Call<'_>) -> Result<Rule> {
    let logits = call.inputs[0].shape();
    let rule = blank(call).label(logits[0], [(0, 0), (1, 0)], []).summed_in(0);
    Ok(rule.label(logits[1], [(0, 1)], []).reduced_inside())
}

fn projected(call: &Call<'_>) -> Result<Rule> {
    Ok(blank(call).label(call.inputs[0].shape()[0], [(0, 0), (2, 0)], []).summed_in(0))
}

pub(crate) const RULES: &[BuiltIn] =
    &[("cross_entropy", cross_entropy), ("projected_cross_entropy", projected)];

/// The options with the number of rows of the whole batch that are not ignored.
fn with_divisor(targets: &DTensor, options: CrossEntropy) -> Result<CrossEntropy> {
    // Reduce pending targets first.
    let targets = &targets.redistribute_for(
        "cross_entropy",
        gradient_layout(targets.layout(), Axes::default())?,
        targets.nan_check(),
    )?;
    let rows = targets.shape().volume() as f64;
    let divisor = match (options.divisor, options.ignore_index) {
        (Some(divisor), _) => divisor,
        (None, Some(ignored)) if targets.device() != Device::Meta => {
            let local = targets.to_local().to_vec::<i64>()?;
            let counted = local.iter().filter(|&&target| target != ignored).count();
            let mut counted = Tensor::scalar(counted as f64)?;
            let layout = targets.layout();
            let cause = Cause { op: "cross_entropy", pass: Pass::Forward };
            for axis in layout.splits().iter().flat_map(|split| &split.axes) {
                let along = (layout.mesh(), *axis);
                counted = all_reduce(targets.dist(), along, &counted, ReduceOp::Sum, cause)?;
            }
            counted.item::<f64>()?
        }
        (None, _) => rows,
    };
    Ok(CrossEntropy { divisor: Some(divisor), ..options })
}

impl DTensor {
    /// As [`Tensor::cross_entropy`]: the mean over the rows of all ranks that are not
    /// ignored. Classes may be sharded; then logits are never gathered.
    pub fn cross_entropy(&self, targets: &Self, options: CrossEntropy) -> Result<Self> {
        let options = with_divisor(targets, options)?;
        let op = Op { name: "cross_entropy", arguments: &[] };
        let dist = Arc::clone(self.dist());
        dispatch_one(&op, &[self, targets], &|x, scope| {
            let part = scope.input(0).filter(|spec| {
                let (mesh, axes) = (spec.layout().mesh(), spec.layout().split_axes(1));
                axes.iter().any(|&axis| mesh.axis_size(axis) > 1)
            });
            let Some(spec) = part else { return Ok(vec![x[0].cross_entropy(&x[1], options)?]) };
            let function = VocabParallelCrossEntropy::new(Arc::clone(&dist), spec, options);
            if x[0].device() == Device::Meta {
                function.log_collectives(&x[0]).map_err(|error| error.into_tensor_error("cross_entropy"))?;
                return Ok(vec![x[0].cross_entropy(&x[1], options)?]);
            }
            apply(function, x)
        })
    }

    /// As [`Tensor::projected_cross_entropy`]: the mean over the rows of all ranks
    /// that are not ignored.
    pub fn projected_cross_entropy(
        &self,
        weight: &Self,
        targets: &Self,
        options: CrossEntropy,
    ) -> Result<Self> {
        let options = with_divisor(targets, options)?;
        let op = Op { name: "projected_cross_entropy", arguments: &[] };
        dispatch_one(&op, &[self, weight, targets], &|x, _| {
            Ok(vec![x[0].projected_cross_entropy(&x[1], &x[2], options)?])
        })
    }
}
