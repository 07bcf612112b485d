//! Views: permute, narrow, expand and reshape.

use weightloom_layout::Shape;

use super::{blank, numbers};
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

fn permute(call: &Call<'_>) -> Result<Rule> {
    let shape = call.inputs[0].shape();
    let mut rule = blank(call).moves_elements();
    for (to, &from) in call.arguments.iter().enumerate() {
        rule = rule.label(shape[from as usize], [(0, from as usize)], [(0, to)]);
    }
    Ok(rule)
}

/// The narrowed dim is not sharded.
fn narrow(call: &Call<'_>) -> Result<Rule> {
    let (from, to) = (call.inputs[0].shape(), &call.outputs[0].0);
    let mut rule = blank(call).moves_elements();
    for (dim, (&size, &after)) in from.iter().zip(to.iter()).enumerate() {
        if size == after {
            rule = rule.label(size, [(0, dim)], [(0, dim)]);
        }
    }
    Ok(rule)
}

/// Each rank expands its own shard.
fn expand(call: &Call<'_>) -> Result<Rule> {
    let (from, to) = (call.inputs[0].shape(), &call.outputs[0].0);
    let lead = to.ndim() - from.ndim();
    let mut rule = blank(call).moves_elements();
    for (dim, &size) in to.iter().enumerate() {
        let input = dim.checked_sub(lead).filter(|&dim| from[dim] == size).map(|dim| (0, dim));
        rule = rule.label(size, input, [(0, dim)]);
    }
    Ok(rule)
}

/// Dims are merged and split in groups of equal volume. The first dims of each group
/// may be sharded where their splits correspond.
fn reshape(call: &Call<'_>) -> Result<Rule> {
    let (from, to) = (call.inputs[0].shape(), &call.outputs[0].0);
    let mut rule = blank(call).moves_elements();
    if from.volume() == 0 {
        return Ok(rule);
    }
    let (mut a, mut b) = (0, 0);
    loop {
        // Dims of size 1 belong to no group.
        a += from[a..].iter().take_while(|&&size| size == 1).count();
        b += to[b..].iter().take_while(|&&size| size == 1).count();
        if a == from.ndim() || b == to.ndim() {
            return Ok(rule);
        }
        let shared = greatest_common_divisor(from[a], to[b]);
        rule = rule.label_units(shared, [(0, a, from[a] / shared)], [(0, b, to[b] / shared)]);
        let (mut volume_a, mut volume_b) = (from[a], to[b]);
        (a, b) = (a + 1, b + 1);
        while volume_a != volume_b {
            if volume_a < volume_b {
                volume_a *= from[a];
                a += 1;
            } else {
                volume_b *= to[b];
                b += 1;
            }
        }
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

pub(crate) const RULES: &[BuiltIn] =
    &[("permute", permute), ("narrow", narrow), ("expand", expand), ("reshape", reshape)];

impl DTensor {
    /// As [`Tensor::permute`](weightloom_tensor::Tensor::permute).
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        let op = Op { name: "permute", arguments: &numbers(order) };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].permute(order)?]))
    }

    /// As [`Tensor::transpose`](weightloom_tensor::Tensor::transpose).
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        let mut order: Vec<usize> = (0..self.shape().ndim()).collect();
        if a.max(b) >= order.len() {
            let (op, shape) = ("transpose", self.shape().clone());
            return Err(weightloom_tensor::TensorError::Dim { op, dim: a.max(b), shape }.into());
        }
        order.swap(a, b);
        self.permute(&order)
    }

    /// As [`Tensor::narrow`](weightloom_tensor::Tensor::narrow).
    pub fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Self> {
        let op = Op { name: "narrow", arguments: &numbers(&[dim, start, length]) };
        dispatch_one(&op, &[self], &|x, scope| {
            // A dim that stays as it is may be sharded.
            let whole = scope.input(0).is_some_and(|spec| spec.shape()[dim] == length);
            Ok(vec![if whole { x[0].clone() } else { x[0].narrow(dim, start, length)? }])
        })
    }

    /// As [`Tensor::expand`](weightloom_tensor::Tensor::expand).
    pub fn expand(&self, shape: &Shape) -> Result<Self> {
        let op = Op { name: "expand", arguments: &numbers(shape) };
        dispatch_one(&op, &[self], &|x, scope| Ok(vec![x[0].expand(scope.shape(0, shape))?]))
    }

    /// As [`Tensor::reshape`](weightloom_tensor::Tensor::reshape).
    pub fn reshape(&self, shape: &Shape) -> Result<Self> {
        let op = Op { name: "reshape", arguments: &numbers(shape) };
        dispatch_one(&op, &[self], &|x, scope| Ok(vec![x[0].reshape(scope.shape(0, shape))?]))
    }
}
