//! Random numbers that do not depend on the layout.

use std::sync::Arc;

use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Stream, Tensor};

use super::broadcast;
use crate::dispatch::{Op, dispatch_one};
use crate::dist_context::DistContext;
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

/// The mask of an element depends on its global index.
fn dropout(call: &Call<'_>) -> Result<Rule> {
    Ok(broadcast(call).term(&[0]))
}

pub(crate) const RULES: &[BuiltIn] = &[("dropout", dropout)];

impl DTensor {
    /// Uniform random numbers in [0, 1), the same for every layout.
    pub fn uniform(
        dist: &Arc<DistContext>,
        dtype: DType,
        shape: &Shape,
        layout: Layout,
        stream: Stream,
    ) -> Result<Self> {
        Self::drawn(dist, dtype, shape, layout, stream, Tensor::uniform_in)
    }

    /// Standard normal random numbers, the same for every layout.
    pub fn normal(
        dist: &Arc<DistContext>,
        dtype: DType,
        shape: &Shape,
        layout: Layout,
        stream: Stream,
    ) -> Result<Self> {
        Self::drawn(dist, dtype, shape, layout, stream, Tensor::normal_in)
    }

    /// Draws a replicated tensor where the layout is pending, and redistributes it.
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
    ) -> Result<Self> {
        let settled = crate::redistribute::gradient_layout(layout, crate::redistribute::Axes::default())?;
        let spec = dist.spec(settled, shape, dtype)?;
        let local = draw(dtype, stream, shape, spec.region())?.to(dist.device())?;
        Self::wrapped("random", dist, local, spec)?.redistribute(layout)
    }

    /// As [`Tensor::dropout`], the same for every layout.
    pub fn dropout(&self, probability: f64, stream: Stream) -> Result<Self> {
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
