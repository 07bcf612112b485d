//! Attention, sharded by batch and by heads.

use weightloom_tensor::Attention;

use super::blank;
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// `[batch, heads, queries, width]`, and keys and values with grouped heads. Heads
/// may be sharded between groups.
fn attention(call: &Call<'_>) -> Result<Rule> {
    let (q, k) = (call.inputs[0].shape(), call.inputs[1].shape());
    let masks = (3..call.inputs.len()).map(|mask| (mask, 0));
    let rule = blank(call).label(q[0], [(0, 0), (1, 0), (2, 0)].into_iter().chain(masks), [(0, 0)]);
    if k[1] == 0 {
        return Ok(rule);
    }
    let group = q[1] / k[1];
    Ok(rule.label_units(k[1], [(0, 1, group), (1, 1, 1), (2, 1, 1)], [(0, 1, group)]))
}

pub(crate) const RULES: &[BuiltIn] = &[("attention", attention)];

impl DTensor {
    /// As [`Tensor::attention`](weightloom_tensor::Tensor::attention).
    pub fn attention(&self, keys: &Self, values: &Self, options: Attention) -> Result<Self> {
        let op = Op { name: "attention", arguments: &[] };
        dispatch_one(&op, &[self, keys, values], &|x, _| Ok(vec![x[0].attention(&x[1], &x[2], options)?]))
    }

    /// As [`Tensor::document_attention`](weightloom_tensor::Tensor::document_attention).
    pub fn document_attention(
        &self,
        keys: &Self,
        values: &Self,
        starts: &Self,
        options: Attention,
    ) -> Result<Self> {
        let op = Op { name: "attention", arguments: &[1] };
        dispatch_one(&op, &[self, keys, values, starts], &|x, _| {
            Ok(vec![x[0].document_attention(&x[1], &x[2], &x[3], options)?])
        })
    }

    /// As [`Tensor::masked_attention`](weightloom_tensor::Tensor::masked_attention).
    pub fn masked_attention(
        &self,
        keys: &Self,
        values: &Self,
        mask: &Self,
        options: Attention,
    ) -> Result<Self> {
        let op = Op { name: "attention", arguments: &[] };
        dispatch_one(&op, &[self, keys, values, mask], &|x, _| {
            Ok(vec![x[0].masked_attention(&x[1], &x[2], &x[3], options)?])
        })
    }
}
