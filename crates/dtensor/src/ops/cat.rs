//! Concatenation, splitting, padding and repetition.

use weightloom_tensor::Tensor;

use super::{all_but, blank, dim_argument, numbers};
use crate::dispatch::{Op, dispatch, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// All dims but the concatenated or stacked one may be sharded.
fn joined(call: &Call<'_>) -> Result<Rule> {
    let (dim, parts) = (dim_argument(call), call.inputs.len());
    let stacked = call.outputs[0].0.ndim() > call.inputs[0].shape().ndim();
    let mut rule = (0..parts).fold(blank(call), |rule, part| rule.term(&[part]));
    for (from, &size) in call.inputs[0].shape().iter().enumerate() {
        let to = from + usize::from(stacked && from >= dim);
        if stacked || from != dim {
            rule = rule.label(size, (0..parts).map(|part| (part, from)), [(0, to)]);
        }
    }
    Ok(rule)
}

fn split(call: &Call<'_>) -> Result<Rule> {
    Ok(all_but(call, dim_argument(call)).moves_elements())
}

/// Padding with zeros passes a pending sum through.
fn pad(call: &Call<'_>) -> Result<Rule> {
    let rule = all_but(call, dim_argument(call));
    let zeros = call.arguments.last().is_some_and(|&value| f64::from_bits(value) == 0.0);
    Ok(if zeros { rule.term(&[0]) } else { rule })
}

fn repeat(call: &Call<'_>) -> Result<Rule> {
    let (from, to) = (call.inputs[0].shape(), &call.outputs[0].0);
    let lead = to.ndim() - from.ndim();
    let mut rule = blank(call).moves_elements();
    for (dim, &size) in from.iter().enumerate() {
        if call.arguments[lead + dim] == 1 {
            rule = rule.label(size, [(0, dim)], [(0, lead + dim)]);
        }
    }
    Ok(rule)
}

pub(crate) const RULES: &[BuiltIn] =
    &[("cat", joined), ("stack", joined), ("split", split), ("pad", pad), ("repeat", repeat)];

impl DTensor {
    /// As [`Tensor::cat`].
    pub fn cat(parts: &[&Self], dim: usize) -> Result<Self> {
        let op = Op { name: "cat", arguments: &[dim as u64] };
        dispatch_one(&op, parts, &|x, _| Ok(vec![Tensor::cat(&x.iter().collect::<Vec<_>>(), dim)?]))
    }

    /// As [`Tensor::stack`].
    pub fn stack(parts: &[&Self], dim: usize) -> Result<Self> {
        let op = Op { name: "stack", arguments: &[dim as u64] };
        dispatch_one(&op, parts, &|x, _| Ok(vec![Tensor::stack(&x.iter().collect::<Vec<_>>(), dim)?]))
    }

    /// As [`Tensor::split`].
    pub fn split(&self, sizes: &[usize], dim: usize) -> Result<Vec<Self>> {
        let mut arguments = vec![dim as u64];
        arguments.extend(numbers(sizes));
        dispatch(&Op { name: "split", arguments: &arguments }, &[self], &|x, _| x[0].split(sizes, dim))
    }

    /// As [`Tensor::pad`].
    pub fn pad(&self, dim: usize, before: usize, after: usize, value: f64) -> Result<Self> {
        let arguments = [dim as u64, before as u64, after as u64, value.to_bits()];
        let op = Op { name: "pad", arguments: &arguments };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].pad(dim, before, after, value)?]))
    }

    /// As [`Tensor::repeat`].
    pub fn repeat(&self, times: &[usize]) -> Result<Self> {
        let op = Op { name: "repeat", arguments: &numbers(times) };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].repeat(times)?]))
    }
}
