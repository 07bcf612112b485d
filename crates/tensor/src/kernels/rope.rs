//! Rotary position embedding.

use std::marker::PhantomData;

use super::make;
use crate::element::{Element as _, Float};
use crate::error::TensorError;
use crate::ops::RopeStyle;
use crate::parallel::{fill, kernel};
use crate::tensor::Tensor;

/// Which way pairs are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Forward,
    Back,
}

kernel! {
    RopeKernel<T: Float> {
        values: &'k [T],
        cos: &'k [T::Wide],
        sin: &'k [T::Wide],
        style: RopeStyle,
        turn: Turn,
        // Rows that stand at one position, one after another.
        together: usize,
        positions: usize,
        width: usize,
    }
    |start, piece| {
        let half = width / 2;
        let rows = piece.chunks_exact_mut(width).zip(values[start..].chunks_exact(width));
        for (row, (out, x)) in rows.enumerate() {
            let position = (start / width + row) / together % positions;
            let turns = position * half..(position + 1) * half;
            let turns = cos[turns.clone()].iter().zip(&sin[turns]);
            let turns = turns.map(|(&cos, &sin)| (cos, if turn == Turn::Forward { sin } else { -sin }));
            match style {
                RopeStyle::Half => {
                    let (out_a, out_b) = out.split_at_mut(half);
                    let pairs = x[..half].iter().zip(&x[half..]);
                    let outs = out_a.iter_mut().zip(out_b);
                    for (((a, b), (out_a, out_b)), (cos, sin)) in pairs.zip(outs).zip(turns) {
                        let (a, b) = (a.widen(), b.widen());
                        *out_a = T::narrow(a * cos - b * sin);
                        *out_b = T::narrow(a * sin + b * cos);
                    }
                }
                RopeStyle::Interleaved => {
                    let pairs = x.chunks_exact(2).zip(out.chunks_exact_mut(2));
                    for ((x, out), (cos, sin)) in pairs.zip(turns) {
                        let (a, b) = (x[0].widen(), x[1].widen());
                        out[0] = T::narrow(a * cos - b * sin);
                        out[1] = T::narrow(a * sin + b * cos);
                    }
                }
            }
        }
    }
}

/// Turns each pair of a row by the angle of its position. `x` is
/// `[…, positions, width]`, cosines and sines `[positions, width / 2]`. Where
/// heads lie inside positions in memory, they do so in the result.
pub(crate) fn rope<T: Float>(
    x: &Tensor,
    [cos, sin]: [&Tensor; 2],
    style: RopeStyle,
    turn: Turn,
) -> Result<Tensor, TensorError> {
    let ndim = x.shape().ndim();
    let (positions, width) = (x.shape()[ndim - 2], x.shape()[ndim - 1]);
    debug_assert!(cos.dtype() == T::Wide::DTYPE);
    let inside = (ndim >= 3).then(|| {
        let mut order: Vec<usize> = (0..ndim).collect();
        order.swap(ndim - 3, ndim - 2);
        (x.seen_as(x.view().permute(&order)), order)
    });
    let (source, order) = match inside {
        Some((seen, order)) if !x.is_contiguous() && seen.is_contiguous() => (seen, Some(order)),
        _ => (x.packed("rope")?, None),
    };
    let together = if order.is_some() { x.shape()[ndim - 3] } else { 1 };
    let (values, cos, sin) = (source.elements::<T>("rope")?, cos.elements("rope")?, sin.elements("rope")?);
    let turned = make::<T>(source.shape(), |out| {
        let kernel =
            RopeKernel { values, cos, sin, style, turn, together, positions, width, element: PhantomData };
        fill(out, width, &kernel);
        Ok(())
    })?;
    Ok(match order {
        Some(order) => turned.seen_as(turned.view().permute(&order)),
        None => turned,
    })
}
