//! Rotary position embedding.

use std::marker::PhantomData;

use super::make;
use crate::backend::meta::output_like;
use crate::backend::{Cpu, Meta};
use crate::element::{Element as _, Float, with_float};
use crate::error::Result;
use crate::ops::RopeStyle;
use crate::parallel::{fill, kernel};
use crate::tensor::Tensor;
use crate::view::View;

/// Rotary embedding kernels.
pub(crate) trait RopeKernels {
    /// Rotates pairs by angles, given as cosines and sines; `x` of any strides.
    fn rope(
        &self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        style: RopeStyle,
        rotation: Rotation,
    ) -> Result<Tensor>;
}

impl RopeKernels for Cpu {
    fn rope(
        &self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        style: RopeStyle,
        rotation: Rotation,
    ) -> Result<Tensor> {
        with_float!("rope", x.dtype(), T => rope::<T>(x, [cos, sin], style, rotation))
    }
}

impl RopeKernels for Meta {
    fn rope(&self, x: &Tensor, cos: &Tensor, sin: &Tensor, _: RopeStyle, _: Rotation) -> Result<Tensor> {
        let rotated = output_like("rope", 3, &[x, cos, sin])?;
        let ndim = x.shape().ndim();
        if ndim < 3 || x.is_contiguous() {
            return Ok(rotated);
        }
        // The result keeps the memory order of heads and positions.
        let mut order: Vec<usize> = (0..ndim).collect();
        order.swap(ndim - 3, ndim - 2);
        let inside = x.view().permute(&order);
        if !inside.is_contiguous() {
            return Ok(rotated);
        }
        Ok(rotated.with_view(View::contiguous(inside.shape).permute(&order)))
    }
}

/// The direction of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotation {
    Forward,
    Inverse,
}

kernel! {
    RopeKernel<T: Float> {
        values: &'k [T],
        cos: &'k [T::Wide],
        sin: &'k [T::Wide],
        style: RopeStyle,
        rotation: Rotation,
        // Consecutive rows of one position.
        rows_per_position: usize,
        positions: usize,
        // Consecutive rows of one table of angles.
        rows_per_table: usize,
        width: usize,
    }
    |start, piece| {
        let half = width / 2;
        let rows = piece.chunks_exact_mut(width).zip(values[start..].chunks_exact(width));
        for (row, (out, x)) in rows.enumerate() {
            let row = start / width + row;
            let position = row / rows_per_table * positions + row / rows_per_position % positions;
            let angles = position * half..(position + 1) * half;
            let angles = cos[angles.clone()].iter().zip(&sin[angles]);
            let angles = angles.map(|(&cos, &sin)| (cos, if rotation == Rotation::Forward { sin } else { -sin }));
            match style {
                RopeStyle::Half => {
                    let (out_a, out_b) = out.split_at_mut(half);
                    let pairs = x[..half].iter().zip(&x[half..]);
                    let outs = out_a.iter_mut().zip(out_b);
                    for (((a, b), (out_a, out_b)), (cos, sin)) in pairs.zip(outs).zip(angles) {
                        let (a, b) = (a.widen(), b.widen());
                        *out_a = T::narrow(a * cos - b * sin);
                        *out_b = T::narrow(a * sin + b * cos);
                    }
                }
                RopeStyle::Interleaved => {
                    let pairs = x.chunks_exact(2).zip(out.chunks_exact_mut(2));
                    for ((x, out), (cos, sin)) in pairs.zip(angles) {
                        let (a, b) = (x[0].widen(), x[1].widen());
                        out[0] = T::narrow(a * cos - b * sin);
                        out[1] = T::narrow(a * sin + b * cos);
                    }
                }
            }
        }
    }
}

/// The rows of a tensor `[…, positions, width]` in memory, and the table that each has
/// its angles in.
pub(crate) struct RopeRows {
    /// The elements, contiguous.
    pub(crate) source: Tensor,
    pub(crate) positions: usize,
    /// Consecutive rows of one position.
    pub(crate) rows_per_position: usize,
    /// Consecutive rows of one table of angles.
    pub(crate) rows_per_table: usize,
    pub(crate) width: usize,
    /// How the source's dims are permuted.
    order: Option<Vec<usize>>,
}

impl RopeRows {
    /// Heads that are stored inside positions are left there.
    pub(crate) fn new(x: &Tensor, cos: &Tensor) -> Result<Self> {
        let ndim = x.shape().ndim();
        let (positions, width) = (x.shape()[ndim - 2], x.shape()[ndim - 1]);
        let inside = (ndim >= 3).then(|| {
            let mut order: Vec<usize> = (0..ndim).collect();
            order.swap(ndim - 3, ndim - 2);
            (x.with_view(x.view().permute(&order)), order)
        });
        let (source, order) = match inside {
            Some((seen, order)) if !x.is_contiguous() && seen.is_contiguous() => (seen, Some(order)),
            _ => (x.contiguous("rope")?, None),
        };
        let rows_per_position = if order.is_some() { x.shape()[ndim - 3] } else { 1 };
        let rows_per_table = match cos.shape().ndim() {
            2 => usize::MAX,
            _ => (x.shape().volume() / (x.shape()[0] * width).max(1)).max(1),
        };
        Ok(Self { source, positions, rows_per_position, rows_per_table, width, order })
    }

    /// A result of the source's shape in the order of dims of the operand.
    pub(crate) fn restored(&self, rotated: Tensor) -> Tensor {
        match &self.order {
            Some(order) => rotated.with_view(rotated.view().permute(order)),
            None => rotated,
        }
    }
}

/// Rotates each pair of a row by the angle of its position. `x` is
/// `[…, positions, width]`, cosines and sines `[positions, width / 2]`, or
/// `[batch, positions, width / 2]`. The result keeps the memory order of heads and
/// positions.
pub(crate) fn rope<T: Float>(
    x: &Tensor,
    [cos, sin]: [&Tensor; 2],
    style: RopeStyle,
    rotation: Rotation,
) -> Result<Tensor> {
    debug_assert!(cos.dtype() == T::Wide::DTYPE);
    let rows = RopeRows::new(x, cos)?;
    let RopeRows { source, positions, rows_per_position, rows_per_table, width, .. } = &rows;
    let (positions, rows_per_position) = (*positions, *rows_per_position);
    let (rows_per_table, width) = (*rows_per_table, *width);
    let (values, cos, sin) = (source.elements::<T>("rope")?, cos.elements("rope")?, sin.elements("rope")?);
    let rotated = make::<T>(source.shape(), |out| {
        let kernel = RopeKernel {
            values,
            cos,
            sin,
            style,
            rotation,
            rows_per_position,
            positions,
            rows_per_table,
            width,
            element: PhantomData,
        };
        fill(out, width, &kernel);
        Ok(())
    })?;
    Ok(rows.restored(rotated))
}
