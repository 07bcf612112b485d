//! Random elements, each by its index.

use num_traits::{FromPrimitive as _, Zero as _};
use weightloom_layout::Shape;

use super::make;
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::{PIECE, pieces};
use crate::random::{Draw, Indices};
use crate::tensor::Tensor;

/// Random numbers by index.
pub(crate) fn draw<T: Float>(draw: Draw, indices: &Indices, shape: &Shape) -> Result<Tensor, TensorError> {
    make::<T>(shape, |out| {
        by_index(out, indices, |index, _, out| {
            let number = draw.number(index);
            *out = T::narrow(T::Wide::from_f32(number).unwrap_or_else(T::Wide::zero));
        });
        Ok(())
    })
}

/// Calls `visit` with the index, the place and the memory of each element.
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

/// Elements zeroed by chance, the others scaled up so that the mean stays.
pub(crate) fn dropout<T: Float>(
    x: &Tensor,
    probability: f64,
    draw: Draw,
    indices: &Indices,
) -> Result<Tensor, TensorError> {
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
