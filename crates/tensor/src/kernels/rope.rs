//! Rotary position embedding.

use num_traits::{Float as _, FromPrimitive as _};

use super::make;
use crate::element::Float;
use crate::error::TensorError;
use crate::ops::RopeStyle;
use crate::parallel::pieces;
use crate::tensor::Tensor;

/// Which way to turn; the gradient turns back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Forward,
    Back,
}

/// Turns each pair of a row by the angle of its position. `x` is
/// `[…, positions, width]`, the angles `[positions, width / 2]`.
pub(crate) fn rope<T: Float>(
    x: &Tensor,
    angles: &[f64],
    style: RopeStyle,
    turn: Turn,
) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("rope")?;
    let ndim = x.shape().ndim();
    let (positions, width) = (x.shape()[ndim - 2], x.shape()[ndim - 1]);
    let half = width / 2;
    let wide = |value: f64| T::Wide::from_f64(value).unwrap_or_else(T::Wide::nan);
    let sign = if turn == Turn::Forward { 1.0 } else { -1.0 };
    // Each angle serves every head and batch.
    let turns: Vec<(T::Wide, T::Wide)> =
        angles.iter().map(|angle| (wide(angle.cos()), wide(sign * angle.sin()))).collect();
    make::<T>(x.shape(), |out| {
        pieces(out, width, |start, piece| {
            for (row, (out, x)) in
                piece.chunks_exact_mut(width).zip(values[start..].chunks_exact(width)).enumerate()
            {
                let position = (start / width + row) % positions;
                let turns = &turns[position * half..(position + 1) * half];
                for (pair, &(cos, sin)) in turns.iter().enumerate() {
                    let (a, b) = match style {
                        RopeStyle::Half => (pair, pair + half),
                        RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                    };
                    let (xa, xb) = (x[a].widen(), x[b].widen());
                    out[a] = T::narrow(xa * cos - xb * sin);
                    out[b] = T::narrow(xa * sin + xb * cos);
                }
            }
        });
        Ok(())
    })
}
