//! Scaled dot-product attention.

use weightloom_layout::DType;

use super::{check_float, check_same_device, common, shape_mismatch};
use crate::backend::on;
use crate::error::{Result, TensorError};
use crate::kernels::attention::{Geometry, KeyLimit};
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// Options of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    /// The factor of scores; defaults to `1 / sqrt(width)`.
    pub scale: Option<f64>,
    /// Masks keys after the position of a query. The last query has the position
    /// of the last key.
    pub causal: bool,
    /// Sliding window: masks all but this many keys up to the position of a query.
    pub window: Option<usize>,
    /// Soft cap of scores: `cap · tanh(score / cap)`.
    pub soft_cap: Option<f64>,
}

struct AttentionFunction {
    options: Attention,
    limit: LimitKind,
}

/// What the fourth operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitKind {
    /// There is none.
    None,
    /// A padding mask.
    Padding,
    /// The first position of each position's document.
    Documents,
}

impl LimitKind {
    fn dtype(self) -> DType {
        if self == Self::Documents { DType::I64 } else { DType::Bool }
    }

    fn of(self, operand: Option<&Tensor>) -> KeyLimit<'_> {
        match (self, operand) {
            (Self::None, _) | (_, None) => KeyLimit::None,
            (Self::Padding, Some(mask)) => KeyLimit::Padding(mask),
            (Self::Documents, Some(starts)) => KeyLimit::Documents(starts),
        }
    }
}

impl AttentionFunction {
    fn geometry(&self, [q, k, v]: [&Tensor; 3]) -> Result<Geometry> {
        let refused = || shape_mismatch("attention", &[q, k, v]);
        let (&[batch, heads, queries, width], &[kv_batch, kv_heads, keys, kv_width]) =
            (&q.shape()[..], &k.shape()[..])
        else {
            return Err(refused());
        };
        let fits = k.shape() == v.shape()
            && (batch, width) == (kv_batch, kv_width)
            // A rank may hold a shard without heads.
            && (heads == 0) == (kv_heads == 0)
            && heads.is_multiple_of(kv_heads)
            && width > 0;
        if !fits {
            return Err(refused());
        }
        let scale = self.options.scale.unwrap_or(1.0 / (width as f64).sqrt());
        let Attention { causal, window, soft_cap, .. } = self.options;
        Ok(Geometry { batch, heads, kv_heads, queries, keys, width, scale, causal, window, soft_cap })
    }
}

/// A tensor with contiguous rows and any other strides.
fn rows(x: &Tensor) -> Result<Tensor> {
    let last = x.shape().ndim() - 1;
    if x.strides()[last] == 1 || x.shape()[last] == 1 { Ok(x.detach()) } else { x.contiguous("attention") }
}

impl Function for AttentionFunction {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [q, k, v, masks @ ..] = inputs else {
            return Err(shape_mismatch("attention", &inputs.iter().collect::<Vec<_>>()));
        };
        let (device, dtype) = common("attention", &[q, k, v])?;
        check_float("attention", dtype)?;
        let geometry = self.geometry([q, k, v])?;
        let mask = masks.first().map(|mask| mask.contiguous("attention")).transpose()?;
        if let Some(mask) = &mask {
            check_same_device("attention", &[q, mask])?;
            if mask.dtype() != self.limit.dtype() {
                return Err(TensorError::DType { op: "attention", dtype: mask.dtype() });
            }
            let paired = self.limit != LimitKind::Documents || geometry.queries == geometry.keys;
            if mask.shape()[..] != [geometry.batch, geometry.keys] || !paired {
                return Err(shape_mismatch("attention", &[q, k, v, mask]));
            }
        }
        let (q, k, v) = (rows(q)?, rows(k)?, rows(v)?);
        let [out, logs] = on(device).attention(&geometry, [&q, &k, &v], self.limit.of(mask.as_ref()))?;
        context.save(&[&q, &k, &v, &out, &logs]);
        if let Some(mask) = &mask {
            context.save(&[mask]);
        }
        Ok(vec![out])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(gradient), [q, k, v, out, logs, masks @ ..]) = (&gradients[0], context.saved()) else {
            return Ok(vec![None; 3]);
        };
        let geometry = self.geometry([q, k, v])?;
        let gradient = rows(gradient)?;
        let limit = self.limit.of(masks.first());
        let of_inputs =
            on(q.device()).attention_gradient(&geometry, [q, k, v], limit, [out, logs], &gradient)?;
        let mut of_inputs: Vec<Option<Tensor>> = of_inputs.map(Some).into();
        of_inputs.extend(masks.iter().map(|_| None));
        Ok(of_inputs)
    }
}

impl Tensor {
    /// Scaled dot-product attention of these queries, `[batch, heads, queries,
    /// width]`, to keys and values, `[batch, kv_heads, keys, width]`, with grouped
    /// heads if there are fewer `kv_heads`. A query whose keys are all masked gets
    /// zeros.
    pub fn attention(&self, keys: &Self, values: &Self, options: Attention) -> Result<Self> {
        let limit = LimitKind::None;
        apply_one(AttentionFunction { options, limit }, &[self.clone(), keys.clone(), values.clone()])
    }

    /// [`attention`](Self::attention) within each document of packed rows. `starts`,
    /// `[batch, positions]` of `i64`, has the first position of each position's
    /// document. A document's results have the bits that it has alone in a row.
    pub fn document_attention(
        &self,
        keys: &Self,
        values: &Self,
        starts: &Self,
        options: Attention,
    ) -> Result<Self> {
        let inputs = [self.clone(), keys.clone(), values.clone(), starts.clone()];
        apply_one(AttentionFunction { options, limit: LimitKind::Documents }, &inputs)
    }

    /// [`attention`](Self::attention) to the keys where a padding mask of bools,
    /// `[batch, keys]`, is true.
    pub fn masked_attention(
        &self,
        keys: &Self,
        values: &Self,
        mask: &Self,
        options: Attention,
    ) -> Result<Self> {
        let inputs = [self.clone(), keys.clone(), values.clone(), mask.clone()];
        apply_one(AttentionFunction { options, limit: LimitKind::Padding }, &inputs)
    }
}
