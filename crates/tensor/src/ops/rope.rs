//! Rotary position embedding.

use super::mismatch;
use crate::device::Device;
use crate::element::with_float;
use crate::error::TensorError;
use crate::kernels::rope::{Turn, rope};
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
    angles: Vec<f64>,
    style: RopeStyle,
}

impl Rope {
    fn turned(&self, x: &Tensor, turn: Turn) -> Result<Tensor, TensorError> {
        let x = x.packed("rope")?;
        if x.device() == Device::Meta {
            return Ok(Tensor::meta(x.shape().clone(), x.dtype()));
        }
        with_float!("rope", x.dtype(), T => rope::<T>(&x, &self.angles, self.style, turn))
    }
}

impl Function for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![self.turned(&inputs[0], Turn::Forward)?])
    }

    fn backward(
        &self,
        _: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        Ok(vec![gradients[0].as_ref().map(|gradient| self.turned(gradient, Turn::Back)).transpose()?])
    }
}

impl Tensor {
    /// Turns pairs of elements by their position's angles. This is
    /// `[…, positions, width]`; the `f64` angles are `[positions, width / 2]`.
    pub fn rope(&self, angles: &Self, style: RopeStyle) -> Result<Self, TensorError> {
        let ndim = self.shape().ndim();
        let fits = ndim >= 2
            && self.shape()[ndim - 1].is_multiple_of(2)
            && angles.shape()[..] == [self.shape()[ndim - 2], self.shape()[ndim - 1] / 2];
        if !fits {
            return Err(mismatch("rope", &[self, angles]));
        }
        let angles = if self.device() == Device::Meta { Vec::new() } else { angles.to_vec()? };
        apply_one(Rope { angles, style }, std::slice::from_ref(self))
    }
}
