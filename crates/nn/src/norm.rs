//! RMS norm and layer norm.

use weightloom_dtensor::DTensor;
use weightloom_layout::Layout;
use weightloom_tensor::Tensor;

use crate::adapter::Adapter;
use crate::batch_adapters::narrow_rows;
use crate::config::{NormConfig, NormKind};
use crate::context::ForwardContext;
use crate::error::NnError;

/// RMS norm without weights.
pub(crate) fn plain_rms_norm(x: &DTensor, eps: f64) -> Result<DTensor, NnError> {
    Ok(x.rms_norm(&constant(x, 1.0)?, eps)?)
}

/// One value for each element of the last dim.
fn constant(x: &DTensor, value: f64) -> Result<DTensor, NnError> {
    let width = x.shape()[x.shape().ndim() - 1];
    let all = Tensor::full(value, x.dtype(), &[width], x.device())?;
    Ok(DTensor::distribute(x.dist(), &all, Layout::replicated(x.layout().mesh()))?)
}

/// Parameter indices of a norm.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Option<usize>,
    pub(crate) bias: Option<usize>,
}

impl Norm {
    pub(crate) fn forward(
        &self,
        context: &ForwardContext<'_>,
        config: &NormConfig,
        x: &DTensor,
    ) -> Result<DTensor, NnError> {
        let names = [self.weight, self.bias].map(|index| index.map(|index| context.name(index)));
        let touches = |adapter: &Adapter| names.iter().flatten().any(|name| adapter.replaces(name));
        context.by_group(x.shape()[0], touches, |context, rows| {
            self.forward_group(context, config, &narrow_rows(x, rows)?)
        })
    }

    fn forward_group(
        &self,
        context: &ForwardContext<'_>,
        config: &NormConfig,
        x: &DTensor,
    ) -> Result<DTensor, NnError> {
        let weight = match self.weight {
            Some(index) if config.offset == 0.0 => context.parameter(index)?,
            Some(index) => context.parameter(index)?.add(&constant(x, config.offset)?)?,
            None => constant(x, 1.0)?,
        };
        Ok(match config.kind {
            NormKind::Rms => x.rms_norm(&weight, config.eps)?,
            NormKind::Layer | NormKind::LayerPlain => {
                let bias = self.bias.map_or_else(|| constant(x, 0.0), |index| context.parameter(index))?;
                x.layer_norm(&weight, &bias, config.eps)?
            }
        })
    }
}
