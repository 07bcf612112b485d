//! Scaled dot-product attention.

use shardloom_layout::{DType, Shape};

use super::{common, mismatch};
use crate::device::Device;
use crate::element::Wide;
use crate::error::TensorError;
use crate::kernels::attention::{self, Geometry, Saved};
use crate::kernels::make;
use crate::kernels::matmul::Multiply;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// How queries look at keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    /// What scores are multiplied by; `1 / sqrt(width)` if not given.
    pub scale: Option<f64>,
    /// Queries see no keys behind their own position. The last query stands at
    /// the last key.
    pub causal: bool,
    /// Queries see only this many keys up to their own position.
    pub window: Option<usize>,
}

struct AttentionFunction {
    options: Attention,
}

impl AttentionFunction {
    fn geometry(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Geometry, TensorError> {
        let refused = || mismatch("attention", &[q, k, v]);
        let (&[batch, heads, queries, width], &[kv_batch, kv_heads, keys, kv_width]) =
            (&q.shape()[..], &k.shape()[..])
        else {
            return Err(refused());
        };
        let fits = k.shape() == v.shape()
            && (batch, width) == (kv_batch, kv_width)
            && kv_heads > 0
            && heads.is_multiple_of(kv_heads)
            && width > 0;
        if !fits {
            return Err(refused());
        }
        let scale = self.options.scale.unwrap_or(1.0 / (width as f64).sqrt());
        let Attention { causal, window, .. } = self.options;
        Ok(Geometry { batch, heads, kv_heads, queries, keys, width, scale, causal, window })
    }
}

fn forward<W: Wide + Multiply>(
    geometry: &Geometry,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<(Tensor, Tensor), TensorError> {
    let name = "attention";
    let logs_shape = Shape::new(&[geometry.batch, geometry.heads, geometry.queries])?;
    let mut logs = vec![W::zero(); logs_shape.volume()];
    let out = make::<W>(q.shape(), |out| {
        attention::forward(geometry, q.elements(name)?, k.elements(name)?, v.elements(name)?, out, &mut logs)
    })?;
    Ok((out, Tensor::from_slice(&logs, &logs_shape)?))
}

fn backward<W: Wide + Multiply>(
    geometry: &Geometry,
    saved: &[Tensor],
    gradient: &Tensor,
) -> Result<[Tensor; 3], TensorError> {
    let name = "attention";
    let [q, k, v, out, logs] = saved else {
        return Err(TensorError::Consumed { function: name });
    };
    let saved = Saved::<W> {
        q: q.elements(name)?,
        k: k.elements(name)?,
        v: v.elements(name)?,
        out: out.elements(name)?,
        logs: logs.elements(name)?,
        gradient: gradient.elements(name)?,
    };
    let mut of_k = vec![W::zero(); k.shape().volume()];
    let mut of_v = vec![W::zero(); v.shape().volume()];
    let of_q = make::<W>(q.shape(), |of_q| {
        attention::backward(geometry, &saved, of_q, &mut of_k, &mut of_v)
    })?;
    Ok([of_q, Tensor::from_slice(&of_k, k.shape())?, Tensor::from_slice(&of_v, v.shape())?])
}

/// Half types are computed in `f32`.
fn computed_in(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

impl Function for AttentionFunction {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [q, k, v] = inputs else { return Err(mismatch("attention", &inputs.iter().collect::<Vec<_>>())) };
        let (device, dtype) = common("attention", &[q, k, v])?;
        if !dtype.is_float() || dtype.size() == 1 {
            return Err(TensorError::DType { op: "attention", dtype });
        }
        let geometry = self.geometry(q, k, v)?;
        if device == Device::Meta {
            return Ok(vec![Tensor::meta(q.shape().clone(), dtype)]);
        }
        let wide = computed_in(dtype);
        let ready = |x: &Tensor| x.packed("attention")?.cast(wide);
        let (q, k, v) = (ready(q)?, ready(k)?, ready(v)?);
        let (out, logs) = match wide {
            DType::F64 => forward::<f64>(&geometry, &q, &k, &v)?,
            _ => forward::<f32>(&geometry, &q, &k, &v)?,
        };
        context.save(&[&q, &k, &v, &out, &logs]);
        Ok(vec![out.cast(dtype)?])
    }

    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [q, k, v, ..]) = (&gradients[0], context.saved()) else {
            return Ok(vec![None, None, None]);
        };
        let dtype = gradient.dtype();
        let wide = computed_in(dtype);
        let gradient = gradient.packed("attention")?.cast(wide)?;
        let geometry = self.geometry(q, k, v)?;
        let of_inputs = match wide {
            DType::F64 => backward::<f64>(&geometry, context.saved(), &gradient)?,
            _ => backward::<f32>(&geometry, context.saved(), &gradient)?,
        };
        of_inputs.iter().map(|gradient| Ok(Some(gradient.cast(dtype)?))).collect()
    }
}

impl Tensor {
    /// Attention of these queries, `[batch, heads, queries, width]`, to keys and
    /// values, `[batch, kv_heads, keys, width]`. Several heads may share one of
    /// keys and values.
    pub fn attention(&self, keys: &Self, values: &Self, options: Attention) -> Result<Self, TensorError> {
        apply_one(AttentionFunction { options }, &[self.clone(), keys.clone(), values.clone()])
    }
}
