//! One transformer layer.

use std::ops::Range;

use weightloom_dtensor::DTensor;

use super::Structure;
use crate::attention::{Attention, PositionInfo};
use crate::cache::Cache;
use crate::config::ResidualForm;
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::experts::Experts;
use crate::mlp::Mlp;
use crate::norm::Norm;
use crate::plan::SequenceParallelism;

/// The modules of a layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    /// The indices of all its parameters.
    pub(super) parameters: Range<usize>,
    pub(super) before_attention: Option<Norm>,
    pub(super) attention: Attention,
    pub(super) after_attention: Option<Norm>,
    pub(super) before_feed_forward: Option<Norm>,
    pub(super) feed_forward: FeedForward,
    pub(super) after_feed_forward: Option<Norm>,
}

/// A dense or a mixture-of-experts feed-forward block.
#[derive(Clone, Debug)]
pub(super) enum FeedForward {
    Mlp(Mlp),
    Experts(Experts),
}

impl Structure {
    /// Runs the layer at `index` of the stage.
    pub(super) fn forward_layer(
        &self,
        context: &ForwardContext<'_>,
        index: usize,
        x: DTensor,
        positions: &PositionInfo,
        cache: Option<(&mut Cache, usize)>,
    ) -> Result<DTensor, NnError> {
        let (config, plan, layer) = (&self.config, &self.plan, &self.layers[index]);
        let number = self.stage.layers.start + index;
        if let Some(check) = x.nan_check() {
            check.enter_module(&format!("model.layers.{number}"));
        }
        let norm = |norm: &Option<Norm>, x: &DTensor| match norm {
            Some(norm) => norm.forward(context, &config.norm, x),
            None => Ok(x.clone()),
        };
        let feed_forward = |x: &DTensor, residual: Option<&DTensor>| match &layer.feed_forward {
            FeedForward::Mlp(mlp) => mlp.forward(context, &config.mlp, x, residual),
            FeedForward::Experts(experts) => {
                let options = config.experts(number);
                let options = options.ok_or_else(|| self.wrong_stage("use experts that it does not have"))?;
                experts.forward(context, options, &config.mlp, x, residual)
            }
        };
        // With sequence parallelism a block ends with a reduce-scatter, so the
        // residual is added after it; otherwise it is fused into the last matmul.
        let scattered = plan.usage().sequence_parallel == SequenceParallelism::On;
        let fused = |residual: &DTensor| (!scattered).then(|| residual.clone());
        let leave = |out: DTensor, residual: &DTensor| -> Result<DTensor, NnError> {
            let out = plan.leave_block(out)?;
            if scattered { Ok(out.add(residual)?) } else { Ok(out) }
        };
        let input = plan.enter_block(norm(&layer.before_attention, &x)?)?;
        let attention = |cache, residual: Option<&DTensor>| {
            layer.attention.forward(context, number, &input, positions, cache, residual)
        };
        match config.residual {
            ResidualForm::Before => {
                let x = leave(attention(cache, fused(&x).as_ref())?, &x)?;
                let input = plan.enter_block(norm(&layer.before_feed_forward, &x)?)?;
                leave(feed_forward(&input, fused(&x).as_ref())?, &x)
            }
            ResidualForm::Parallel => {
                let attended = attention(cache, fused(&x).as_ref())?;
                leave(feed_forward(&input, Some(&attended))?, &x)
            }
            ResidualForm::After | ResidualForm::Around => {
                let attended = plan.leave_block(attention(cache, None)?)?;
                let x = x.add(&norm(&layer.after_attention, &attended)?)?;
                let input = plan.enter_block(norm(&layer.before_feed_forward, &x)?)?;
                let out = plan.leave_block(feed_forward(&input, None)?)?;
                Ok(x.add(&norm(&layer.after_feed_forward, &out)?)?)
            }
        }
    }
}
