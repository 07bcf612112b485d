//! One AdamW step, in one pass over everything it touches.

use num_traits::{Float as _, FromPrimitive as _, ToPrimitive as _};
use pulp::{Simd, WithSimd};

use super::copy_on_write::CopyOnWrite;
use super::lanes;
use crate::adamw::Step;
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::{PIECE, map, share};
use crate::tensor::Tensor;
use crate::vectors::dispatch;

/// Changes parameter, mean and mean square. The gradient may be of a narrower
/// type that is computed in the same.
pub(crate) fn adamw<T: Float, G: Float<Wide = T::Wide>>(
    step: &Step,
    gradient: &Tensor,
    [parameter, mean, square]: [&mut Tensor; 3],
) -> Result<(), TensorError> {
    let gradient = gradient.elements::<G>("adamw")?;
    let old = [
        parameter.detach_shared_memory("adamw")?,
        mean.detach_shared_memory("adamw")?,
        square.detach_shared_memory("adamw")?,
    ];
    let pieces = CopyOnWrite::<T>::pieces("adamw", old[0].as_ref(), parameter)?
        .zip(CopyOnWrite::<T>::pieces("adamw", old[1].as_ref(), mean)?)
        .zip(CopyOnWrite::<T>::pieces("adamw", old[2].as_ref(), square)?)
        .zip(gradient.chunks(PIECE));
    share(pieces, |(((parameter, mean), square), gradient)| {
        let [parameter, mean, square] = [parameter, mean, square].map(CopyOnWrite::elements);
        dispatch(Piece { step, gradient, parameter, mean, square });
    });
    Ok(())
}

struct Piece<'a, T, G> {
    step: &'a Step,
    gradient: &'a [G],
    parameter: &'a mut [T],
    mean: &'a mut [T],
    square: &'a mut [T],
}

impl<T: Float, G: Float<Wide = T::Wide>> WithSimd for Piece<'_, T, G> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let wide = |value: f64| T::Wide::from_f64(value).unwrap_or_else(T::Wide::nan);
        let Step { beta1, beta2, eps, kept, size, root, scale } = *self.step;
        let (rest1, rest2) = (wide(1.0 - beta1), wide(1.0 - beta2));
        let (beta1, beta2, eps) = (wide(beta1), wide(beta2), wide(eps));
        let (kept, size, root, scale) = (wide(kept), wide(size), wide(root), wide(scale));
        let state = self.parameter.iter_mut().zip(self.mean).zip(self.square);
        for (((p, m), v), g) in state.zip(self.gradient) {
            let g = g.widen() * scale;
            let mean = m.widen() * beta1 + g * rest1;
            let square = v.widen() * beta2 + g * g * rest2;
            let direction = mean / (square.sqrt() * root + eps);
            *p = T::narrow(p.widen() * kept - direction * size);
            *m = T::narrow(mean);
            *v = T::narrow(square);
        }
    }
}

struct Squares<'a, T> {
    piece: &'a [T],
}

impl<T: Float> WithSimd for Squares<'_, T> {
    type Output = T::Wide;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> T::Wide {
        lanes::sum(self.piece, |x| x * x)
    }
}

/// The sum of squares: pieces side by side, then in order.
pub(crate) fn squares<T: Float>(x: &Tensor) -> Result<f64, TensorError> {
    let pieces = map(x.elements::<T>("global_norm")?.chunks(PIECE), |piece| {
        dispatch(Squares { piece }).to_f64().unwrap_or(f64::NAN)
    });
    Ok(pieces.into_iter().sum())
}
