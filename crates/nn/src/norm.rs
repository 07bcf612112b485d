//! Norms.

use weightloom_dtensor::DTensor;
use weightloom_layout::Layout;
use weightloom_tensor::Tensor;

use crate::adapter::Adapter;
use crate::changes::part;
use crate::config::{NormConfig, NormKind};
use crate::decoder::Run;
use crate::error::NnError;

/// Where the parameters of a norm are.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Option<usize>,
    pub(crate) bias: Option<usize>,
}

impl Norm {
    pub(crate) fn apply(&self, run: &Run<'_>, config: &NormConfig, x: &DTensor) -> Result<DTensor, NnError> {
        let names = [self.weight, self.bias].map(|place| place.map(|place| run.name(place)));
        let touches = |adapter: &Adapter| names.iter().flatten().any(|name| adapter.replaces(name));
        run.by_group(x.shape()[0], touches, |run, rows| self.apply_to(run, config, &part(x, rows)?))
    }

    fn apply_to(&self, run: &Run<'_>, config: &NormConfig, x: &DTensor) -> Result<DTensor, NnError> {
        let width = x.shape()[x.shape().ndim() - 1];
        let constant = |value: f64| -> Result<DTensor, NnError> {
            let all = Tensor::full(value, x.dtype(), &[width], x.device())?;
            Ok(DTensor::distribute(x.dist(), &all, Layout::replicated(x.layout().mesh()))?)
        };
        let weight = match self.weight {
            Some(place) if config.offset == 0.0 => run.parameter(place)?,
            Some(place) => run.parameter(place)?.add(&constant(config.offset)?)?,
            None => constant(1.0)?,
        };
        Ok(match config.kind {
            NormKind::Rms => x.rms_norm(&weight, config.eps)?,
            NormKind::Layer | NormKind::LayerPlain => {
                let bias = self.bias.map_or_else(|| constant(0.0), |place| run.parameter(place))?;
                x.layer_norm(&weight, &bias, config.eps)?
            }
        })
    }
}
