//! Cumulative sum, sort, top-k and argmax.

use weightloom_tensor::Order;

use super::{all_but, blank, dim_argument};
use crate::dispatch::{Op, dispatch, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

fn cumsum(call: &Call<'_>) -> Result<Rule> {
    Ok(all_but(call, dim_argument(call)).term(&[0]))
}

fn sorted(call: &Call<'_>) -> Result<Rule> {
    Ok(all_but(call, dim_argument(call)))
}

/// The dim is removed from the result.
fn argmax(call: &Call<'_>) -> Result<Rule> {
    let (shape, removed) = (call.inputs[0].shape(), dim_argument(call));
    let mut rule = blank(call);
    for (to, dim) in (0..shape.ndim()).filter(|&dim| dim != removed).enumerate() {
        rule = rule.label(shape[dim], [(0, dim)], [(0, to)]);
    }
    Ok(rule)
}

pub(crate) const RULES: &[BuiltIn] =
    &[("cumsum", cumsum), ("sort", sorted), ("topk", sorted), ("argmax", argmax)];

impl DTensor {
    /// As [`Tensor::cumsum`](weightloom_tensor::Tensor::cumsum).
    pub fn cumsum(&self, dim: usize) -> Result<Self> {
        let op = Op { name: "cumsum", arguments: &[dim as u64] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].cumsum(dim)?]))
    }

    /// As [`Tensor::sort`](weightloom_tensor::Tensor::sort).
    pub fn sort(&self, dim: usize, order: Order) -> Result<(Self, Self)> {
        let op = Op { name: "sort", arguments: &[dim as u64] };
        pair(
            op.name,
            dispatch(&op, &[self], &|x, _| {
                x[0].sort(dim, order).map(|(values, places)| vec![values, places])
            })?,
        )
    }

    /// As [`Tensor::topk`](weightloom_tensor::Tensor::topk).
    pub fn topk(&self, count: usize, dim: usize) -> Result<(Self, Self)> {
        let op = Op { name: "topk", arguments: &[dim as u64, count as u64] };
        pair(
            op.name,
            dispatch(&op, &[self], &|x, _| {
                x[0].topk(count, dim).map(|(values, places)| vec![values, places])
            })?,
        )
    }

    /// As [`Tensor::argmax`](weightloom_tensor::Tensor::argmax).
    pub fn argmax(&self, dim: usize) -> Result<Self> {
        let op = Op { name: "argmax", arguments: &[dim as u64] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].argmax(dim)?]))
    }
}

fn pair(op: &'static str, results: Vec<DTensor>) -> Result<(DTensor, DTensor)> {
    let found = results.len();
    let two = <[DTensor; 2]>::try_from(results);
    two.map(Into::into).map_err(|_| DTensorError::ResultCount { op, found, expected: 2 })
}
