//! Comparison and selection.

use super::{blank, broadcast};
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

fn plain(call: &Call<'_>) -> Result<Rule> {
    Ok(broadcast(call))
}

/// The values may be pending, the condition may not.
fn select(call: &Call<'_>) -> Result<Rule> {
    Ok(broadcast(call).term(&[1]).term(&[2]))
}

/// Filling with zeros passes a pending sum through.
fn masked_fill(call: &Call<'_>) -> Result<Rule> {
    let zeros = call.arguments.first().is_some_and(|&value| f64::from_bits(value) == 0.0);
    Ok(if zeros { broadcast(call).term(&[0]) } else { broadcast(call) })
}

fn one_hot(call: &Call<'_>) -> Result<Rule> {
    let mut rule = blank(call);
    for (dim, &size) in call.inputs[0].shape().iter().enumerate() {
        rule = rule.label(size, [(0, dim)], [(0, dim)]);
    }
    Ok(rule)
}

/// Rows and columns are not sharded; leading dims may be.
fn triangle(call: &Call<'_>) -> Result<Rule> {
    let shape = call.inputs[0].shape();
    let mut rule = blank(call).term(&[0]);
    for (dim, &size) in shape[..shape.ndim() - 2].iter().enumerate() {
        rule = rule.label(size, [(0, dim)], [(0, dim)]);
    }
    Ok(rule)
}

pub(crate) const RULES: &[BuiltIn] = &[
    ("eq", plain),
    ("ne", plain),
    ("lt", plain),
    ("le", plain),
    ("gt", plain),
    ("ge", plain),
    ("select", select),
    ("masked_fill", masked_fill),
    ("one_hot", one_hot),
    ("tril", triangle),
    ("triu", triangle),
];

macro_rules! comparisons {
    ($($method:ident),*) => {
        impl DTensor {
            $(#[doc = concat!("As [`Tensor::", stringify!($method), "`](weightloom_tensor::Tensor::", stringify!($method), ").")]
            pub fn $method(&self, other: &Self) -> Result<Self> {
                let op = Op { name: stringify!($method), arguments: &[] };
                dispatch_one(&op, &[self, other], &|x, _| Ok(vec![x[0].$method(&x[1])?]))
            })*
        }
    };
}

comparisons!(eq, ne, lt, le, gt, ge);

impl DTensor {
    /// As [`Tensor::select`](weightloom_tensor::Tensor::select).
    pub fn select(&self, a: &Self, b: &Self) -> Result<Self> {
        let op = Op { name: "select", arguments: &[] };
        dispatch_one(&op, &[self, a, b], &|x, _| Ok(vec![x[0].select(&x[1], &x[2])?]))
    }

    /// As [`Tensor::masked_fill`](weightloom_tensor::Tensor::masked_fill).
    pub fn masked_fill(&self, mask: &Self, value: f64) -> Result<Self> {
        let op = Op { name: "masked_fill", arguments: &[value.to_bits()] };
        dispatch_one(&op, &[self, mask], &|x, _| Ok(vec![x[0].masked_fill(&x[1], value)?]))
    }

    /// As [`Tensor::one_hot`](weightloom_tensor::Tensor::one_hot).
    pub fn one_hot(&self, classes: usize) -> Result<Self> {
        let op = Op { name: "one_hot", arguments: &[classes as u64] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].one_hot(classes)?]))
    }

    /// As [`Tensor::tril`](weightloom_tensor::Tensor::tril).
    pub fn tril(&self, offset: i64) -> Result<Self> {
        let op = Op { name: "tril", arguments: &[] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].tril(offset)?]))
    }

    /// As [`Tensor::triu`](weightloom_tensor::Tensor::triu).
    pub fn triu(&self, offset: i64) -> Result<Self> {
        let op = Op { name: "triu", arguments: &[] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].triu(offset)?]))
    }
}
