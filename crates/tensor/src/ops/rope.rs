//! Rotary position embedding.

use weightloom_layout::DType;

use super::{check_float, check_same_device, shape_mismatch};
use crate::backend::on;
use crate::error::{Result, TensorError};
use crate::kernels::attention::Geometry;
use crate::kernels::rope::Rotation;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// The pairs of elements that are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// The i-th of the first half with the i-th of the second, as in Llama
    /// checkpoints of Hugging Face.
    Half,
    /// Neighbours, as in Meta's checkpoints.
    Interleaved,
}

struct Rope {
    style: RopeStyle,
}

impl Function for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [x, cos, sin] = inputs else {
            return Err(shape_mismatch("rope", &inputs.iter().collect::<Vec<_>>()));
        };
        let device = check_same_device("rope", &[x, cos, sin])?;
        check_float("rope", x.dtype())?;
        let ndim = x.shape().ndim();
        let fits = ndim >= 2 && x.shape()[ndim - 1].is_multiple_of(2) && cos.shape() == sin.shape() && {
            let (first, positions, pairs) = (x.shape()[0], x.shape()[ndim - 2], x.shape()[ndim - 1] / 2);
            cos.shape()[..] == [positions, pairs] || ndim > 2 && cos.shape()[..] == [first, positions, pairs]
        };
        if !fits {
            return Err(shape_mismatch("rope", &[x, cos, sin]));
        }
        let wide: DType = Geometry::computed_in(x.dtype());
        let (cos, sin) = (cos.contiguous("rope")?.cast(wide)?, sin.contiguous("rope")?.cast(wide)?);
        context.save(&[&cos, &sin]);
        Ok(vec![on(device).rope(x, &cos, &sin, self.style, Rotation::Forward)?])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(g), [cos, sin]) = (&gradients[0], context.saved()) else { return Ok(vec![None; 3]) };
        if context.needs(1) || context.needs(2) {
            return Err(TensorError::NotDifferentiable { function: "rope's angle" });
        }
        Ok(vec![Some(on(g.device()).rope(g, cos, sin, self.style, Rotation::Inverse)?), None, None])
    }
}

impl Tensor {
    /// Rotates pairs of elements by the angles of their position. This tensor is
    /// `[…, positions, width]`, cosines and sines are `[positions, width / 2]`, or
    /// `[batch, positions, width / 2]` where rows differ, best in `f32`, or in
    /// `f64` for `f64`.
    pub fn rope(&self, cos: &Self, sin: &Self, style: RopeStyle) -> Result<Self> {
        apply_one(Rope { style }, &[self.clone(), cos.clone(), sin.clone()])
    }
}
