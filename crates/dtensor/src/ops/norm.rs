//! Normalisation, softmax and rotary embedding.

use weightloom_tensor::RopeStyle;

use super::{all_but, blank, dim_argument};
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// The last dim is not sharded, and every rank uses the whole weights.
fn norm(call: &Call<'_>) -> Result<Rule> {
    Ok(all_but(call, call.inputs[0].shape().ndim() - 1))
}

fn along_dim(call: &Call<'_>) -> Result<Rule> {
    Ok(all_but(call, dim_argument(call)))
}

/// Positions may be sharded together with their angles, and rows with theirs.
fn rope(call: &Call<'_>) -> Result<Rule> {
    let (x, angles) = (call.inputs[0].shape(), call.inputs[1].shape());
    let (ndim, lead) = (x.ndim(), angles.ndim());
    let mut rule = blank(call).term(&[0]);
    for dim in 0..ndim - 1 {
        let mut inputs = vec![(0, dim)];
        let here = match dim {
            _ if dim + 2 == ndim => lead.checked_sub(2),
            0 if lead == 3 => Some(0),
            _ => None,
        };
        if let Some(here) = here.filter(|&here| angles[here] == x[dim]) {
            inputs.extend([(1, here), (2, here)]);
        }
        rule = rule.label(x[dim], inputs, [(0, dim)]);
    }
    Ok(rule)
}

pub(crate) const RULES: &[BuiltIn] = &[
    ("rms_norm", norm),
    ("layer_norm", norm),
    ("softmax", along_dim),
    ("log_softmax", along_dim),
    ("rope", rope),
];

impl DTensor {
    /// As [`Tensor::rms_norm`](weightloom_tensor::Tensor::rms_norm).
    pub fn rms_norm(&self, weight: &Self, eps: f64) -> Result<Self> {
        let op = Op { name: "rms_norm", arguments: &[] };
        dispatch_one(&op, &[self, weight], &|x, _| Ok(vec![x[0].rms_norm(&x[1], eps)?]))
    }

    /// As [`Tensor::layer_norm`](weightloom_tensor::Tensor::layer_norm).
    pub fn layer_norm(&self, weight: &Self, bias: &Self, eps: f64) -> Result<Self> {
        let op = Op { name: "layer_norm", arguments: &[] };
        dispatch_one(&op, &[self, weight, bias], &|x, _| Ok(vec![x[0].layer_norm(&x[1], &x[2], eps)?]))
    }

    /// As [`Tensor::softmax`](weightloom_tensor::Tensor::softmax).
    pub fn softmax(&self, dim: usize) -> Result<Self> {
        let op = Op { name: "softmax", arguments: &[dim as u64] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].softmax(dim)?]))
    }

    /// As [`Tensor::log_softmax`](weightloom_tensor::Tensor::log_softmax).
    pub fn log_softmax(&self, dim: usize) -> Result<Self> {
        let op = Op { name: "log_softmax", arguments: &[dim as u64] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].log_softmax(dim)?]))
    }

    /// As [`Tensor::rope`](weightloom_tensor::Tensor::rope).
    pub fn rope(&self, cos: &Self, sin: &Self, style: RopeStyle) -> Result<Self> {
        let op = Op { name: "rope", arguments: &[] };
        dispatch_one(&op, &[self, cos, sin], &|x, _| Ok(vec![x[0].rope(&x[1], &x[2], style)?]))
    }
}
