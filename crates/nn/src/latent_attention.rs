//! Projections of multi-head latent attention.
//!
//! Keys and values of all heads are projected up from one small vector per token,
//! and the rotated part of keys is one vector for all heads. The cache holds full
//! keys and values, so that attention is the same as everywhere else.

use weightloom_dtensor::DTensor;
use weightloom_layout::Shape;

use crate::attention::PositionInfo;
use crate::config::NormConfig;
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::linear::Linear;
use crate::norm::Norm;

/// Projections and norms of latent attention.
#[derive(Clone, Debug)]
pub(crate) struct LatentProjections {
    pub(crate) query: QueryProjection,
    /// To the small vector of keys and values, and to the rotated part of keys.
    pub(crate) down: Linear,
    pub(crate) norm: Norm,
    /// To keys without their rotated part, and to values.
    pub(crate) up: Linear,
}

/// How queries are made.
#[derive(Clone, Debug)]
pub(crate) enum QueryProjection {
    /// From the hidden state.
    Full(Linear),
    /// From a small vector.
    Low { down: Linear, norm: Norm, up: Linear },
}

impl LatentProjections {
    /// Queries, keys and values, `[batch, heads, time, width]`; values are padded
    /// with zeros.
    pub(crate) fn forward(
        &self,
        context: &ForwardContext<'_>,
        layer: usize,
        x: &DTensor,
        positions: &PositionInfo,
    ) -> Result<[DTensor; 3], NnError> {
        let config = context.config();
        let options = &config.attention;
        let latent = options.latent.as_ref().ok_or_else(|| NnError::MissingParameter {
            name: format!("model.layers.{layer}.self_attn.q_proj.weight"),
        })?;
        let (batch, time, heads) = (positions.batch, positions.time, options.heads);
        let (turned, plain) = (latent.rope_width, options.width - latent.rope_width);
        let norm_config = NormConfig { eps: latent.eps, ..config.norm.clone() };
        let norm = |norm: &Norm, x: &DTensor| norm.forward(context, &norm_config, x);
        let split = |x: DTensor, width: usize| -> Result<DTensor, NnError> {
            Ok(x.reshape(&Shape::new(&[batch, time, heads, width])?)?.transpose(1, 2)?)
        };
        let rotate = |x: DTensor| match config.rope(layer) {
            Some(rope) => positions.rotate(x, rope, config.window(layer)),
            None => Ok(x),
        };

        let queries = match &self.query {
            QueryProjection::Full(linear) => linear.forward(context, x, None)?,
            QueryProjection::Low { down, norm: own, up } => {
                up.forward(context, &norm(own, &down.forward(context, x, None)?)?, None)?
            }
        };
        let queries = split(queries, options.width)?;
        let rotated = rotate(queries.narrow(3, plain, turned)?)?;
        let queries = join(&queries.narrow(3, 0, plain)?, &rotated)?;

        let small = self.down.forward(context, x, None)?;
        let rotated = small.narrow(2, latent.kv_rank, turned)?;
        let rotated = rotate(rotated.reshape(&Shape::new(&[batch, 1, time, turned])?)?)?;
        let rotated = rotated.expand(&Shape::new(&[batch, heads, time, turned])?)?;
        let both =
            self.up.forward(context, &norm(&self.norm, &small.narrow(2, 0, latent.kv_rank)?)?, None)?;
        let both = split(both, plain + latent.value_width)?;
        let keys = join(&both.narrow(3, 0, plain)?, &rotated)?;
        let values = both.narrow(3, plain, latent.value_width)?;
        let missing = options.width - latent.value_width;
        let values = if missing == 0 { values } else { values.pad(3, 0, missing, 0.0)? };
        Ok([queries, keys, values])
    }
}

/// Concatenates the parts of a head.
fn join(plain: &DTensor, rotated: &DTensor) -> Result<DTensor, NnError> {
    match plain.shape()[3] {
        0 => Ok(rotated.clone()),
        _ => Ok(DTensor::cat(&[plain, rotated], 3)?),
    }
}
