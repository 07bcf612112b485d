//! Rotary position embedding.

use weightloom_layout::DType;

use super::{computed, mismatch, one_device};
use crate::backend::on;
use crate::error::TensorError;
use crate::kernels::attention::Geometry;
use crate::kernels::rope::Turn;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// Which elements of a row form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// The i-th of the first half with the i-th of the second, as in Llama
    /// checkpoints of Hugging Face.
    Half,
    /// Neighbours, as in Meta's own.
    Interleaved,
}

struct Rope {
    style: RopeStyle,
}

impl Function for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [x, cos, sin] = inputs else { return Err(mismatch("rope", &inputs.iter().collect::<Vec<_>>())) };
        let device = one_device("rope", &[x, cos, sin])?;
        computed("rope", x.dtype())?;
        let ndim = x.shape().ndim();
        let fits = ndim >= 2
            && x.shape()[ndim - 1].is_multiple_of(2)
            && cos.shape()[..] == [x.shape()[ndim - 2], x.shape()[ndim - 1] / 2]
            && cos.shape() == sin.shape();
        if !fits {
            return Err(mismatch("rope", &[x, cos, sin]));
        }
        let wide: DType = Geometry::computed_in(x.dtype());
        let (cos, sin) = (cos.packed("rope")?.cast(wide)?, sin.packed("rope")?.cast(wide)?);
        context.save(&[&cos, &sin]);
        Ok(vec![on(device).rope(x, &cos, &sin, self.style, Turn::Forward)?])
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(g), [cos, sin]) = (&gradients[0], context.saved()) else { return Ok(vec![None; 3]) };
        if context.needs(1) || context.needs(2) {
            return Err(TensorError::NotDifferentiable { function: "rope's angle" });
        }
        Ok(vec![Some(on(g.device()).rope(g, cos, sin, self.style, Turn::Back)?), None, None])
    }
}

impl Tensor {
    /// Turns pairs of elements by the angles of their position, given as
    /// cosines and sines. This is `[…, positions, width]`, those are
    /// `[positions, width / 2]`, best in `f32`, or `f64` for `f64`.
    pub fn rope(&self, cos: &Self, sin: &Self, style: RopeStyle) -> Result<Self, TensorError> {
        apply_one(Rope { style }, &[self.clone(), cos.clone(), sin.clone()])
    }
}
