//! Random elements, each by its index.

use num_traits::{FromPrimitive as _, Zero as _};
use shardloom_layout::Shape;

use super::make;
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::pieces;
use crate::random::Draw;
use crate::tensor::Tensor;

/// Random numbers by index, from the `first`.
pub(crate) fn draw<T: Float>(draw: Draw, first: u64, shape: &Shape) -> Result<Tensor, TensorError> {
    make::<T>(shape, |out| {
        pieces(out, 4, |start, piece| {
            for (place, out) in piece.iter_mut().enumerate() {
                let number = draw.number(first.wrapping_add((start + place) as u64));
                *out = T::narrow(T::Wide::from_f32(number).unwrap_or_else(T::Wide::zero));
            }
        });
        Ok(())
    })
}

/// Elements zeroed by chance, the others scaled up so that the mean stays.
pub(crate) fn dropout<T: Float>(
    x: &Tensor,
    probability: f64,
    draw: Draw,
    first: u64,
) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("dropout")?;
    let kept = 1.0 - probability;
    let zero = T::Wide::zero();
    let factor = T::Wide::from_f64(if kept > 0.0 { 1.0 / kept } else { 0.0 }).unwrap_or(zero);
    make::<T>(x.shape(), |out| {
        pieces(out, 1, |start, piece| {
            for (place, (out, x)) in piece.iter_mut().zip(&values[start..]).enumerate() {
                let number = draw.number(first.wrapping_add((start + place) as u64));
                let keep = f64::from(number) >= probability;
                *out = T::narrow(if keep { x.widen() * factor } else { zero });
            }
        });
        Ok(())
    })
}
