//! Reductions.

use super::{Ruling, blank, numbers};
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::DTensorError;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// Dims that are kept stand for themselves.
fn kept(call: &Call<'_>) -> Rule {
    let shape = call.inputs[0].shape();
    let mut rule = blank(call);
    let kept = (0..shape.ndim()).filter(|&dim| !call.arguments.contains(&(dim as u64)));
    for (to, dim) in kept.enumerate() {
        rule = rule.label(shape[dim], [(0, dim)], [(0, to)]);
    }
    rule
}

fn sum(call: &Call<'_>) -> Ruling {
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

fn whole(call: &Call<'_>) -> Ruling {
    Ok(kept(call))
}

pub(crate) const RULES: &[BuiltIn] =
    &[("sum", sum), ("max", whole), ("min", whole), ("prod", whole), ("norm", whole), ("logsumexp", whole)];

macro_rules! reductions {
    ($($method:ident),*) => {
        impl DTensor {
            $(#[doc = concat!("As [`Tensor::", stringify!($method), "`](weightloom_tensor::Tensor::", stringify!($method), ").")]
            pub fn $method(&self, dims: &[usize]) -> Result<Self, DTensorError> {
                let op = Op { name: stringify!($method), arguments: &numbers(dims) };
                dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].$method(dims)?]))
            })*
        }
    };
}

reductions!(sum, max, min, prod, norm, logsumexp);

impl DTensor {
    /// The sum of all elements.
    pub fn sum_all(&self) -> Result<Self, DTensorError> {
        self.sum(&(0..self.shape().ndim()).collect::<Vec<_>>())
    }

    /// As [`Tensor::mean`](weightloom_tensor::Tensor::mean): a sum over all ranks, divided by how many
    /// elements the whole tensor has, so that uneven parts count by their size.
    pub fn mean(&self, dims: &[usize]) -> Result<Self, DTensorError> {
        let sum = self.sum(dims)?;
        let count = self.shape().volume() as f64 / sum.shape().volume() as f64;
        sum.scale(1.0 / count)
    }
}
