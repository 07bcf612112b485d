//! Matrix products.

use weightloom_tensor::Tensor;

use super::{blank, numbers};
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// `[…, m, k] · […, k, n] → […, m, n]`, with leading dims that broadcast.
fn matmul(call: &Call<'_>) -> Result<Rule> {
    let (a, b, (out, _)) = (call.inputs[0].shape(), call.inputs[1].shape(), &call.outputs[0]);
    let (na, nb, no) = (a.ndim(), b.ndim(), out.ndim());
    let mut rule = blank(call).term(&[0, 1]);
    for dim in 0..no - 2 {
        let size = out[dim];
        let of = |input: usize, ndim: usize| {
            let here = (dim + ndim).checked_sub(no)?;
            (call.inputs[input].shape()[here] == size).then_some((input, here))
        };
        rule = rule.label(size, of(0, na).into_iter().chain(of(1, nb)), [(0, dim)]);
    }
    rule = rule.label(out[no - 2], [(0, na - 2)], [(0, no - 2)]);
    rule = rule.label(out[no - 1], [(1, nb - 1)], [(0, no - 1)]);
    Ok(rule.label(a[na - 1], [(0, na - 1), (1, nb - 2)], []).summed_in(0))
}

/// `[…, k] · [n, k] → […, n]`, to which a bias `[n]` and a residual `[…, n]`
/// are added once.
fn linear(call: &Call<'_>) -> Result<Rule> {
    let (x, weight) = (call.inputs[0].shape(), call.inputs[1].shape());
    let (bias, residual) = extras(call);
    let last = x.ndim() - 1;
    let mut rule = blank(call).term(&[0, 1]);
    for operand in bias.iter().chain(&residual) {
        rule = rule.term(&[*operand]);
    }
    for dim in 0..last {
        rule = rule.label(
            x[dim],
            residual.map(|operand| (operand, dim)).into_iter().chain([(0, dim)]),
            [(0, dim)],
        );
    }
    let columns = [Some((1, 0)), bias.map(|operand| (operand, 0)), residual.map(|operand| (operand, last))]
        .into_iter()
        .flatten();
    rule = rule.label(weight[0], columns, [(0, last)]);
    Ok(rule.label(x[last], [(0, last), (1, 1)], []).summed_in(0))
}

/// The operand indices of bias and residual.
fn extras(call: &Call<'_>) -> (Option<usize>, Option<usize>) {
    let has_bias = call.arguments.first() == Some(&1);
    let has_residual = call.arguments.get(1) == Some(&1);
    (has_bias.then_some(2), has_residual.then_some(2 + usize::from(has_bias)))
}

/// `[rows, k] · [groups, k, n] → [rows, n]`.
fn grouped(call: &Call<'_>) -> Result<Rule> {
    let weights = call.inputs[1].shape();
    let rule = blank(call).term(&[0, 1]).label(weights[2], [(1, 2)], [(0, 1)]);
    Ok(rule.label(weights[1], [(0, 1), (1, 1)], []).summed_in(0))
}

pub(crate) const RULES: &[BuiltIn] = &[("matmul", matmul), ("linear", linear), ("grouped_matmul", grouped)];

impl DTensor {
    /// As [`Tensor::matmul`].
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        let op = Op { name: "matmul", arguments: &[] };
        dispatch_one(&op, &[self, other], &|x, _| Ok(vec![x[0].matmul(&x[1])?]))
    }

    /// As [`Tensor::linear`].
    pub fn linear(&self, weight: &Self, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self> {
        let inputs: Vec<&Self> = [Some(self), Some(weight), bias, residual].into_iter().flatten().collect();
        let arguments = [u64::from(bias.is_some()), u64::from(residual.is_some())];
        let op = Op { name: "linear", arguments: &arguments };
        dispatch_one(&op, &inputs, &|x: &[Tensor], _| {
            let mut more = x[2..].iter();
            let bias = bias.and_then(|_| more.next());
            Ok(vec![x[0].linear(&x[1], bias, residual.and_then(|_| more.next()))?])
        })
    }

    /// As [`Tensor::grouped_matmul`].
    pub fn grouped_matmul(&self, weights: &Self, groups: &[usize]) -> Result<Self> {
        let op = Op { name: "grouped_matmul", arguments: &numbers(groups) };
        dispatch_one(&op, &[self, weights], &|x, _| Ok(vec![x[0].grouped_matmul(&x[1], groups)?]))
    }
}
