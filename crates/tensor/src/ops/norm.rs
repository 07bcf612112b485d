//! RMS norm and layer norm.

use super::{check_float, common, shape_mismatch};
use crate::backend::on;
use crate::error::Result;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

struct RmsNorm {
    eps: f64,
}

impl Function for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, weight) = (inputs[0].contiguous("rms_norm")?, inputs[1].contiguous("rms_norm")?);
        let (device, dtype) = common("rms_norm", &[&x, &weight])?;
        check_float("rms_norm", dtype)?;
        if weight.shape().ndim() != 1 || x.shape().last() != weight.shape().last() {
            return Err(shape_mismatch("rms_norm", &[&x, &weight]));
        }
        context.save(&[&x, &weight]);
        Ok(vec![on(device).rms_norm(&x, &weight, self.eps)?])
    }

    fn backward(&self, context: Context, mut gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(gradient), [x, weight]) = (gradients[0].take(), context.saved()) else {
            return Ok(vec![None, None]);
        };
        let gradient = gradient.into_contiguous("rms_norm")?;
        Ok(on(x.device()).rms_norm_gradient(x, weight, gradient, self.eps)?.map(Some).into())
    }
}

struct LayerNorm {
    eps: f64,
}

impl Function for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let packed =
            inputs.iter().map(|input| input.contiguous("layer_norm")).collect::<Result<Vec<_>, _>>()?;
        let operands: Vec<&Tensor> = packed.iter().collect();
        let (device, dtype) = common("layer_norm", &operands)?;
        check_float("layer_norm", dtype)?;
        let (x, weight, bias) = (operands[0], operands[1], operands[2]);
        let fits = weight.shape().ndim() == 1
            && x.shape().last() == weight.shape().last()
            && weight.shape() == bias.shape();
        if !fits {
            return Err(shape_mismatch("layer_norm", &operands));
        }
        context.save(&[x, weight]);
        Ok(vec![on(device).layer_norm(x, weight, bias, self.eps)?])
    }

    fn backward(&self, context: Context, mut gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(gradient), [x, weight]) = (gradients[0].take(), context.saved()) else {
            return Ok(vec![None, None, None]);
        };
        let gradient = gradient.into_contiguous("layer_norm")?;
        Ok(on(x.device()).layer_norm_gradient(x, weight, gradient, self.eps)?.map(Some).into())
    }
}

impl Tensor {
    /// `x / sqrt(mean(x²) + eps) · weight` along the last dim.
    pub fn rms_norm(&self, weight: &Self, eps: f64) -> Result<Self> {
        apply_one(RmsNorm { eps }, &[self.clone(), weight.clone()])
    }

    /// `(x - mean) / sqrt(variance + eps) · weight + bias` along the last dim.
    pub fn layer_norm(&self, weight: &Self, bias: &Self, eps: f64) -> Result<Self> {
        apply_one(LayerNorm { eps }, &[self.clone(), weight.clone(), bias.clone()])
    }
}
