//! One step of gradient descent, in one pass over everything it touches.

use num_traits::{Float as _, FromPrimitive as _};
use pulp::{Simd, WithSimd};

use super::copy_on_write::CopyOnWrite;
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::{PIECE, share};
use crate::sgd::Sgd;
use crate::tensor::Tensor;
use crate::vectors::dispatch;

/// Changes the parameter, and the running sum of gradients if there is one. The
/// gradient may be of a narrower type that is computed in the same.
pub(crate) fn sgd<T: Float, G: Float<Wide = T::Wide>>(
    step: &Sgd,
    gradient: &Tensor,
    parameter: &mut Tensor,
    buffer: Option<&mut Tensor>,
) -> Result<(), TensorError> {
    let gradient = gradient.elements::<G>("sgd")?.chunks(PIECE);
    let old = parameter.detach_shared_memory("sgd")?;
    let pieces = CopyOnWrite::<T>::pieces("sgd", old.as_ref(), parameter)?.zip(gradient);
    match buffer {
        None => share(pieces, |(parameter, gradient)| {
            dispatch(Plain { step, gradient, parameter: parameter.elements() });
        }),
        Some(buffer) => {
            let old = buffer.detach_shared_memory("sgd")?;
            let buffers = CopyOnWrite::<T>::pieces("sgd", old.as_ref(), buffer)?;
            share(pieces.zip(buffers), |((parameter, gradient), buffer)| {
                let [parameter, buffer] = [parameter, buffer].map(CopyOnWrite::elements);
                dispatch(Heavy { step, gradient, parameter, buffer });
            });
        }
    }
    Ok(())
}

#[inline(always)]
fn wide<T: Float>(value: f64) -> T::Wide {
    T::Wide::from_f64(value).unwrap_or_else(T::Wide::nan)
}

/// Without momentum.
struct Plain<'a, T, G> {
    step: &'a Sgd,
    gradient: &'a [G],
    parameter: &'a mut [T],
}

impl<T: Float, G: Float<Wide = T::Wide>> WithSimd for Plain<'_, T, G> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (scale, decay) = (wide::<T>(self.step.gradient_scale), wide::<T>(self.step.weight_decay));
        let size = wide::<T>(self.step.learning_rate);
        for (p, g) in self.parameter.iter_mut().zip(self.gradient) {
            let before = p.widen();
            *p = T::narrow(before - (g.widen() * scale + before * decay) * size);
        }
    }
}

/// With momentum.
struct Heavy<'a, T, G> {
    step: &'a Sgd,
    gradient: &'a [G],
    parameter: &'a mut [T],
    buffer: &'a mut [T],
}

impl<T: Float, G: Float<Wide = T::Wide>> WithSimd for Heavy<'_, T, G> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (scale, decay) = (wide::<T>(self.step.gradient_scale), wide::<T>(self.step.weight_decay));
        let (size, momentum) = (wide::<T>(self.step.learning_rate), wide::<T>(self.step.momentum));
        for ((p, b), g) in self.parameter.iter_mut().zip(self.buffer).zip(self.gradient) {
            let before = p.widen();
            let direction = b.widen() * momentum + (g.widen() * scale + before * decay);
            *p = T::narrow(before - direction * size);
            *b = T::narrow(direction);
        }
    }
}
