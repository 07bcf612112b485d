//! Indexing: embedding, index_select, gather and scatter.

use weightloom_layout::DType;
use weightloom_tensor::{Device, Tensor, TensorError};

use super::{blank, dim_argument};
use crate::dispatch::{Op, Scope, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// `[classes, width]` at indices. Classes may be sharded: each rank returns its
/// rows, and zeros for the others.
fn embedding(call: &Call<'_>) -> Result<Rule> {
    let (weight, chosen) = (call.inputs[0].shape(), call.inputs[1].shape());
    let mut rule = blank(call).term(&[0]);
    for (dim, &size) in chosen.iter().enumerate() {
        rule = rule.label(size, [(1, dim)], [(0, dim)]);
    }
    rule = rule.label(weight[1], [(0, 1)], [(0, chosen.ndim())]);
    Ok(rule.label(weight[0], [(0, 0)], []).summed_in(0))
}

fn index_select(call: &Call<'_>) -> Result<Rule> {
    let (shape, dim) = (call.inputs[0].shape(), dim_argument(call));
    let mut rule = blank(call).term(&[0]);
    for (here, &size) in shape.iter().enumerate() {
        rule = match here == dim {
            true => rule.label(call.inputs[1].shape()[0], [(1, 0)], [(0, dim)]),
            false => rule.label(size, [(0, here)], [(0, here)]),
        };
    }
    Ok(rule)
}

/// Other dims may be sharded where operand and indices have equal sizes.
fn gather(call: &Call<'_>) -> Result<Rule> {
    let (x, chosen, dim) = (call.inputs[0].shape(), call.inputs[1].shape(), dim_argument(call));
    let mut rule = blank(call).term(&[0]);
    for (here, &size) in chosen.iter().enumerate() {
        if here == dim {
            rule = rule.label(size, [(1, dim)], [(0, dim)]);
        } else if x[here] == size {
            rule = rule.label(size, [(0, here), (1, here)], [(0, here)]);
        }
    }
    Ok(rule)
}

fn scatter(call: &Call<'_>) -> Result<Rule> {
    let (x, chosen, dim) = (call.inputs[0].shape(), call.inputs[1].shape(), dim_argument(call));
    let mut rule = blank(call).term(&[0]).term(&[2]);
    for (here, &size) in x.iter().enumerate() {
        if here != dim && chosen[here] == size {
            rule = rule.label(size, [(0, here), (1, here), (2, here)], [(0, here)]);
        }
    }
    Ok(rule)
}

pub(crate) const RULES: &[BuiltIn] = &[
    ("embedding", embedding),
    ("index_select", index_select),
    ("gather", gather),
    ("scatter", scatter),
    ("scatter_add", scatter),
];

/// Rows of a shard of a table that starts at class `first`, and zeros for classes
/// of other ranks.
fn embedding_part(
    weight: &Tensor,
    chosen: &Tensor,
    first: usize,
    classes: usize,
) -> Result<Tensor, TensorError> {
    let rows = weight.shape()[0];
    let mut outside = Vec::with_capacity(chosen.shape().volume());
    let mut here = Vec::with_capacity(chosen.shape().volume());
    for (position, index) in chosen.to_vec::<i64>()?.into_iter().enumerate() {
        let class = usize::try_from(index).ok().filter(|&index| index < classes);
        let class = class.ok_or(TensorError::Index { op: "embedding", index, position, rows: classes })?;
        let inside = (first..first + rows).contains(&class);
        outside.push(!inside);
        here.push(if inside { (class - first) as i64 } else { 0 });
    }
    let mut dims = chosen.shape().to_vec();
    let here = Tensor::from_slice(&here, &dims)?.to(weight.device())?;
    dims.push(1);
    let outside = Tensor::from_bools(&outside, &dims)?.to(weight.device())?;
    // An empty shard needs a row to index.
    let weight = if rows == 0 { weight.pad(0, 0, 1, 0.0)? } else { weight.clone() };
    let found = weight.embedding(&here)?;
    found.masked_fill(&outside.expand(found.shape())?, 0.0)
}

impl DTensor {
    /// As [`Tensor::embedding`]. Rows of the table may be sharded.
    pub fn embedding(&self, chosen: &Self) -> Result<Self> {
        let op = Op { name: "embedding", arguments: &[] };
        dispatch_one(&op, &[self, chosen], &|x: &[Tensor], scope: Scope<'_>| {
            let part = scope.input(0).filter(|spec| spec.region().size()[0] != spec.shape()[0]);
            Ok(vec![match part {
                Some(spec) if x[1].device() != Device::Meta && x[1].dtype() == DType::I64 => {
                    embedding_part(&x[0], &x[1], spec.region().start()[0], spec.shape()[0])?
                }
                _ => x[0].embedding(&x[1])?,
            }])
        })
    }

    /// As [`Tensor::index_select`].
    pub fn index_select(&self, dim: usize, chosen: &Self) -> Result<Self> {
        let op = Op { name: "index_select", arguments: &[dim as u64] };
        dispatch_one(&op, &[self, chosen], &|x, _| Ok(vec![x[0].index_select(dim, &x[1])?]))
    }

    /// As [`Tensor::gather`].
    pub fn gather(&self, dim: usize, chosen: &Self) -> Result<Self> {
        let op = Op { name: "gather", arguments: &[dim as u64] };
        dispatch_one(&op, &[self, chosen], &|x, _| Ok(vec![x[0].gather(dim, &x[1])?]))
    }

    /// As [`Tensor::scatter`].
    pub fn scatter(&self, dim: usize, chosen: &Self, source: &Self) -> Result<Self> {
        let op = Op { name: "scatter", arguments: &[dim as u64] };
        dispatch_one(&op, &[self, chosen, source], &|x, _| Ok(vec![x[0].scatter(dim, &x[1], &x[2])?]))
    }

    /// As [`Tensor::scatter_add`].
    pub fn scatter_add(&self, dim: usize, chosen: &Self, source: &Self) -> Result<Self> {
        let op = Op { name: "scatter_add", arguments: &[dim as u64] };
        dispatch_one(&op, &[self, chosen, source], &|x, _| Ok(vec![x[0].scatter_add(dim, &x[1], &x[2])?]))
    }
}
