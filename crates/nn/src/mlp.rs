//! What is done with each token.

use weightloom_dtensor::DTensor;

use crate::config::{Activation, MlpConfig};
use crate::decoder::Run;
use crate::error::NnError;
use crate::linear::Linear;

/// Where the parameters of an MLP are.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    pub(crate) gate: Option<Linear>,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Mlp {
    pub(crate) fn apply(
        &self,
        run: &Run<'_>,
        config: &MlpConfig,
        x: &DTensor,
        residual: Option<&DTensor>,
    ) -> Result<DTensor, NnError> {
        let up = self.up.apply(run, x, None)?;
        let inner = match &self.gate {
            None => bent(&up, config.activation)?,
            Some(gate) => gated(&gate.apply(run, x, None)?, &up, config.activation)?,
        };
        self.down.apply(run, &inner, residual)
    }
}

fn bent(x: &DTensor, activation: Activation) -> Result<DTensor, NnError> {
    Ok(match activation {
        Activation::Silu => x.silu()?,
        Activation::Gelu => x.gelu()?,
        Activation::GeluTanh => x.gelu_tanh()?,
        Activation::Relu => x.relu()?,
    })
}

fn gated(gate: &DTensor, up: &DTensor, activation: Activation) -> Result<DTensor, NnError> {
    Ok(match activation {
        Activation::Silu => gate.swiglu(up)?,
        Activation::Gelu => gate.geglu(up)?,
        Activation::GeluTanh => gate.geglu_tanh(up)?,
        Activation::Relu => gate.relu()?.mul(up)?,
    })
}
