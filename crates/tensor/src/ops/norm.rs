//! Norms.

use super::{common, mismatch};
use crate::device::Device;
use crate::element::with_float;
use crate::error::TensorError;
use crate::kernels::norm;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

struct RmsNorm {
    eps: f64,
}

impl Function for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (x, weight) = (inputs[0].packed("rms_norm")?, inputs[1].packed("rms_norm")?);
        let (device, dtype) = common("rms_norm", &[&x, &weight])?;
        if weight.shape().ndim() != 1 || x.shape().last() != weight.shape().last() {
            return Err(mismatch("rms_norm", &[&x, &weight]));
        }
        if device == Device::Meta {
            return Ok(vec![Tensor::meta(x.shape().clone(), dtype)]);
        }
        context.save(&[&x, &weight]);
        Ok(vec![with_float!("rms_norm", dtype, T => norm::rms_norm::<T>(&x, &weight, self.eps))?])
    }

    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [x, weight]) = (&gradients[0], context.saved()) else {
            return Ok(vec![None, None]);
        };
        let gradient = gradient.packed("rms_norm")?;
        let (of_x, of_weight) = with_float!("rms_norm", x.dtype(), T => {
            norm::rms_norm_gradient::<T>(x, weight, &gradient, self.eps)
        })?;
        Ok(vec![Some(of_x), Some(of_weight)])
    }
}

struct LayerNorm {
    eps: f64,
}

impl Function for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let packed = inputs.iter().map(|input| input.packed("layer_norm")).collect::<Result<Vec<_>, _>>()?;
        let operands: Vec<&Tensor> = packed.iter().collect();
        let (device, dtype) = common("layer_norm", &operands)?;
        let (x, weight, bias) = (operands[0], operands[1], operands[2]);
        let fits = weight.shape().ndim() == 1
            && x.shape().last() == weight.shape().last()
            && weight.shape() == bias.shape();
        if !fits {
            return Err(mismatch("layer_norm", &operands));
        }
        if device == Device::Meta {
            return Ok(vec![Tensor::meta(x.shape().clone(), dtype)]);
        }
        context.save(&[x, weight]);
        Ok(vec![with_float!("layer_norm", dtype, T => norm::layer_norm::<T>(x, weight, bias, self.eps))?])
    }

    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [x, weight]) = (&gradients[0], context.saved()) else {
            return Ok(vec![None, None, None]);
        };
        let gradient = gradient.packed("layer_norm")?;
        let of_inputs = with_float!("layer_norm", x.dtype(), T => {
            norm::layer_norm_gradient::<T>(x, weight, &gradient, self.eps)
        })?;
        Ok(of_inputs.map(Some).into())
    }
}

impl Tensor {
    /// `x / sqrt(mean(x²) + eps) · weight` along the last dim.
    pub fn rms_norm(&self, weight: &Self, eps: f64) -> Result<Self, TensorError> {
        apply_one(RmsNorm { eps }, &[self.clone(), weight.clone()])
    }

    /// `(x - mean) / sqrt(variance + eps) · weight + bias` along the last dim.
    pub fn layer_norm(&self, weight: &Self, bias: &Self, eps: f64) -> Result<Self, TensorError> {
        apply_one(LayerNorm { eps }, &[self.clone(), weight.clone(), bias.clone()])
    }
}
