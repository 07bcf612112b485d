//! Reductions.

use std::collections::BTreeMap;

use weightloom_layout::{Mesh, ReduceOp};
use weightloom_tensor::Tensor;

use super::{blank, numbers};
use crate::comm_log::{Cause, Pass};
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::redistribute::local::all_reduce;
use crate::redistribute::{Axes, gradient_layout};
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// Labels the dims that are not reduced.
fn kept(call: &Call<'_>) -> Rule {
    let shape = call.inputs[0].shape();
    let mut rule = blank(call);
    let kept = (0..shape.ndim()).filter(|&dim| !call.arguments.contains(&(dim as u64)));
    for (to, dim) in kept.enumerate() {
        rule = rule.label(shape[dim], [(0, dim)], [(0, to)]);
    }
    rule
}

fn sum(call: &Call<'_>) -> Result<Rule> {
    let shape = call.inputs[0].shape();
    let mut rule = kept(call).term(&[0]);
    let mut dims: Vec<usize> = call.arguments.iter().map(|&dim| dim as usize).collect();
    dims.sort_unstable();
    dims.dedup();
    for dim in dims {
        rule = rule.label(shape[dim], [(0, dim)], []).summed_in(0);
    }
    Ok(rule)
}

fn whole(call: &Call<'_>) -> Result<Rule> {
    Ok(kept(call))
}

pub(crate) const RULES: &[BuiltIn] =
    &[("sum", sum), ("max", whole), ("min", whole), ("prod", whole), ("norm", whole), ("logsumexp", whole)];

macro_rules! reductions {
    ($($method:ident),*) => {
        impl DTensor {
            $(#[doc = concat!("As [`Tensor::", stringify!($method), "`](weightloom_tensor::Tensor::", stringify!($method), ").")]
            pub fn $method(&self, dims: &[usize]) -> Result<Self> {
                let op = Op { name: stringify!($method), arguments: &numbers(dims) };
                dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].$method(dims)?]))
            })*
        }
    };
}

reductions!(sum, max, min, prod, norm, logsumexp);

impl DTensor {
    /// The sum of all elements.
    pub fn sum_all(&self) -> Result<Self> {
        self.sum(&(0..self.shape().ndim()).collect::<Vec<_>>())
    }

    /// As [`Tensor::mean`](weightloom_tensor::Tensor::mean): the global sum, divided by the number of
    /// elements of the whole tensor, so that uneven shards count by their size.
    pub fn mean(&self, dims: &[usize]) -> Result<Self> {
        let sum = self.sum(dims)?;
        let count = self.shape().volume() as f64 / sum.shape().volume() as f64;
        sum.scale(1.0 / count)
    }
}

/// The Euclidean norm of all elements of all tensors, replicas counted once.
pub fn global_norm(tensors: &[&DTensor]) -> Result<f64> {
    let reduced = tensors.iter().map(|tensor| {
        let layout = gradient_layout(tensor.layout(), Axes::default())?;
        tensor.redistribute_for("global_norm", layout, tensor.nan_check())
    });
    let reduced = reduced.collect::<Result<Vec<_>>>()?;
    // All local sums at once: a GPU is waited for once.
    let locals: Vec<&Tensor> = reduced.iter().map(DTensor::to_local).collect();
    let squares = weightloom_tensor::sums_of_squares(&locals)?;
    let mut sums: BTreeMap<(u32, Vec<usize>), (Mesh, f64)> = BTreeMap::new();
    for (tensor, squares) in reduced.iter().zip(squares) {
        let layout = tensor.layout();
        let mut axes: Vec<usize> = layout.splits().iter().flat_map(|split| split.axes.to_vec()).collect();
        axes.sort_unstable();
        let (_, sum) = sums.entry((layout.mesh().id(), axes)).or_insert((layout.mesh(), 0.0));
        *sum += squares;
    }
    let cause = Cause { op: "global_norm", pass: Pass::Backward };
    let mut total = 0.0;
    for ((_, axes), (mesh, sum)) in sums {
        let mut sum = Tensor::scalar(sum)?;
        for axis in axes {
            sum = all_reduce(tensors[0].dist(), (mesh, axis), &sum, ReduceOp::Sum, cause)?;
        }
        total += sum.item::<f64>()?;
    }
    Ok(total.sqrt())
}
