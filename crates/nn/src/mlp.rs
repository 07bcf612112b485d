//! Feed-forward block.

use weightloom_dtensor::DTensor;

use crate::config::{Activation, MlpConfig};
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::linear::Linear;

/// Projections of a feed-forward block.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    pub(crate) gate: Option<Linear>,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Mlp {
    pub(crate) fn forward(
        &self,
        context: &ForwardContext<'_>,
        config: &MlpConfig,
        x: &DTensor,
        residual: Option<&DTensor>,
    ) -> Result<DTensor, NnError> {
        let up = self.up.forward(context, x, None)?;
        let inner = match &self.gate {
            None => activate(&up, config.activation)?,
            Some(gate) => activate_gated(&gate.forward(context, x, None)?, &up, config.activation)?,
        };
        self.down.forward(context, &inner, residual)
    }
}

fn activate(x: &DTensor, activation: Activation) -> Result<DTensor, NnError> {
    Ok(match activation {
        Activation::Silu => x.silu()?,
        Activation::Gelu => x.gelu()?,
        Activation::GeluTanh => x.gelu_tanh()?,
        Activation::Relu => x.relu()?,
    })
}

fn activate_gated(gate: &DTensor, up: &DTensor, activation: Activation) -> Result<DTensor, NnError> {
    Ok(match activation {
        Activation::Silu => gate.swiglu(up)?,
        Activation::Gelu => gate.geglu(up)?,
        Activation::GeluTanh => gate.geglu_tanh(up)?,
        Activation::Relu => gate.relu()?.mul(up)?,
    })
}
