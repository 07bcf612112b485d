//! Randomness that does not depend on how a tensor is sharded.

use std::sync::Arc;

use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Stream, Tensor};

use super::broadcast;
use crate::dispatch::{Op, dispatch_one};
use crate::dist_context::DistContext;
use crate::dtensor::DTensor;
use crate::error::DTensorError;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// Every element has its own chance, whoever holds it.
fn dropout(call: &Call<'_>) -> Result<Rule, DTensorError> {
    Ok(broadcast(call).term(&[0]))
}

pub(crate) const RULES: &[BuiltIn] = &[("dropout", dropout)];

impl DTensor {
    /// Uniform numbers in [0, 1), the same for every layout.
    pub fn uniform(
        dist: &Arc<DistContext>,
        dtype: DType,
        shape: &Shape,
        layout: Layout,
        stream: Stream,
    ) -> Result<Self, DTensorError> {
        Self::drawn(dist, dtype, shape, layout, stream, Tensor::uniform_in)
    }

    /// Standard normal numbers, the same for every layout.
    pub fn normal(
        dist: &Arc<DistContext>,
        dtype: DType,
        shape: &Shape,
        layout: Layout,
        stream: Stream,
    ) -> Result<Self, DTensorError> {
        Self::drawn(dist, dtype, shape, layout, stream, Tensor::normal_in)
    }

    /// Pending values are drawn once and seeded from there.
    fn drawn(
        dist: &Arc<DistContext>,
        dtype: DType,
        shape: &Shape,
        layout: Layout,
        stream: Stream,
        draw: fn(
            DType,
            Stream,
            &Shape,
            &weightloom_layout::Region,
        ) -> Result<Tensor, weightloom_tensor::TensorError>,
    ) -> Result<Self, DTensorError> {
        let settled = crate::redistribute::gradient_layout(layout, crate::redistribute::Axes::default())?;
        let spec = dist.spec(settled, shape, dtype)?;
        let local = draw(dtype, stream, shape, spec.region())?;
        Self::wrapped("random", dist, local, spec)?.redistribute(layout)
    }

    /// As [`Tensor::dropout`], the same for every layout.
    pub fn dropout(&self, probability: f64, stream: Stream) -> Result<Self, DTensorError> {
        let op = Op { name: "dropout", arguments: &[] };
        dispatch_one(&op, &[self], &|x, scope| {
            let dropped = match scope.input(0) {
                None => x[0].dropout(probability, stream, 0)?,
                Some(spec) => x[0].dropout_in(probability, stream, spec.shape(), spec.region())?,
            };
            Ok(vec![dropped])
        })
    }
}
