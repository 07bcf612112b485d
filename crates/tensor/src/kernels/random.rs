//! Random numbers and dropout.

use num_traits::{FromPrimitive as _, Zero as _};
use weightloom_layout::Shape;

use super::make;
use crate::backend::meta::{output, output_like, volume};
use crate::backend::{Cpu, Meta};
use crate::element::Float;
use crate::element::with_float;
use crate::error::Result;
use crate::parallel::{PIECE, pieces};
use crate::random::{Draw, Indices};
use crate::tensor::Tensor;
use weightloom_layout::DType;

/// Random number kernels.
pub(crate) trait RandomKernels {
    /// Random numbers by index.
    fn draw(&self, draw: Draw, indices: &Indices, dtype: DType, shape: &Shape) -> Result<Tensor>;

    /// Dropout: zeroes random elements and scales up the others.
    fn dropout(&self, x: &Tensor, probability: f64, draw: Draw, indices: &Indices) -> Result<Tensor>;
}

impl RandomKernels for Cpu {
    fn draw(&self, draw: Draw, indices: &Indices, dtype: DType, shape: &Shape) -> Result<Tensor> {
        with_float!("draw", dtype, T => self::draw::<T>(draw, indices, shape))
    }

    fn dropout(&self, x: &Tensor, probability: f64, draw: Draw, indices: &Indices) -> Result<Tensor> {
        with_float!("dropout", x.dtype(), T => dropout::<T>(x, probability, draw, indices))
    }
}

impl RandomKernels for Meta {
    fn draw(&self, _: Draw, _: &Indices, dtype: DType, shape: &Shape) -> Result<Tensor> {
        output("draw", 40 * volume(shape), &[], shape, dtype)
    }

    fn dropout(&self, x: &Tensor, _: f64, _: Draw, _: &Indices) -> Result<Tensor> {
        output_like("dropout", 40, &[x])
    }
}

/// Random numbers by index.
pub(crate) fn draw<T: Float>(draw: Draw, indices: &Indices, shape: &Shape) -> Result<Tensor> {
    make::<T>(shape, |out| {
        by_index(out, indices, |index, _, out| {
            let number = draw.number(index);
            *out = T::narrow(T::Wide::from_f32(number).unwrap_or_else(T::Wide::zero));
        });
        Ok(())
    })
}

/// Calls `visit` with the index, the position and the memory of each element.
fn by_index<T: Send>(out: &mut [T], indices: &Indices, visit: impl Fn(u64, usize, &mut T) + Sync) {
    let run = indices.run();
    pieces(out, run.min(PIECE), |start, piece| {
        for (number, row) in piece.chunks_mut(run.min(piece.len())).enumerate() {
            let first = start + number * run;
            let index = indices.of_element(first);
            for (place, out) in row.iter_mut().enumerate() {
                visit(index.wrapping_add(place as u64), first + place, out);
            }
        }
    });
}

/// Zeroes random elements and scales up the others, so that the mean stays.
pub(crate) fn dropout<T: Float>(
    x: &Tensor,
    probability: f64,
    draw: Draw,
    indices: &Indices,
) -> Result<Tensor> {
    let values = x.elements::<T>("dropout")?;
    let kept = 1.0 - probability;
    let zero = T::Wide::zero();
    let factor = T::Wide::from_f64(if kept > 0.0 { 1.0 / kept } else { 0.0 }).unwrap_or(zero);
    make::<T>(x.shape(), |out| {
        by_index(out, indices, |index, place, out| {
            let keep = f64::from(draw.number(index)) >= probability;
            *out = T::narrow(if keep { values[place].widen() * factor } else { zero });
        });
        Ok(())
    })
}
