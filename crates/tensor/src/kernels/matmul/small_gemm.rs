//! GEMM without packing, for products so small that packing costs as much as
//! multiplying.
//!
//! Operands and result are used in place if the right operand consists of whole,
//! aligned vectors, and copied otherwise. The order of sums is that of the
//! [`microkernel`](super::microkernel) in either case.

use bytemuck::Pod;
use pulp::{Simd, WithSimd};

use super::microkernel::{ROWS, with_rows};
use super::pack_format::Vectors;
use super::{Matrix, Store};
use crate::error::Result;
use crate::memory::Block;
use crate::vectors::dispatch;

/// Adds `lhs @ rhs` to a row-major matrix, or overwrites it, on this thread.
pub(crate) fn product<W: Vectors>(
    lhs: Matrix<'_, W>,
    rhs: Matrix<'_, W>,
    out: &mut [W],
    store: Store,
) -> Result<()> {
    let inside = lhs.is_inside() && rhs.is_inside();
    assert!(inside && rhs.rows == lhs.columns && out.len() == lhs.rows * rhs.columns);
    if store == Store::Set {
        out.fill(W::ZERO);
    }
    if out.is_empty() || lhs.columns == 0 {
        return Ok(());
    }
    dispatch(Product { lhs, rhs, out })
}

struct Product<'a, W> {
    lhs: Matrix<'a, W>,
    rhs: Matrix<'a, W>,
    out: &'a mut [W],
}

/// The elements as whole vectors, if they are aligned.
fn vectors<S: Simd, W: Vectors>(elements: &[W]) -> Option<&[W::Vector<S>]> {
    let whole = elements.len() / W::lanes::<S>() * W::lanes::<S>();
    bytemuck::try_cast_slice(&elements[..whole]).ok()
}

impl<W: Vectors> WithSimd for Product<'_, W> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, width: S) -> Self::Output {
        let Self { lhs, rhs, out } = self;
        let lanes = W::lanes::<S>();
        let (n, padded) = (rhs.columns, rhs.columns.next_multiple_of(2 * lanes));
        let straight = rhs.column_stride == 1 && rhs.row_stride.is_multiple_of(lanes) && n == padded;
        let columns = vectors::<S, W>(&rhs.elements[rhs.start..]).filter(|_| straight);
        let mut copied_columns = None;
        let (columns, column_stride) = match columns {
            Some(columns) => (columns, rhs.row_stride / lanes),
            None => {
                let block = copied_columns.insert(Block::new(rhs.rows * padded * size_of::<W>())?);
                copy(rhs, padded, bytemuck::cast_slice_mut(block.bytes_mut()));
                (bytemuck::cast_slice(block.bytes()), padded / lanes)
            }
        };
        let in_place = n == padded && bytemuck::try_cast_slice::<W, W::Vector<S>>(out).is_ok();
        if in_place {
            let sums = bytemuck::cast_slice_mut(out);
            tiles::<S, W>(width, lhs, columns, column_stride, sums, padded / lanes);
            return Ok(());
        }
        let mut block = Block::new(lhs.rows * padded * size_of::<W>())?;
        let sums: &mut [W] = bytemuck::cast_slice_mut(block.bytes_mut());
        for (sums, out) in sums.chunks_exact_mut(padded).zip(out.chunks_exact(n)) {
            sums[..n].copy_from_slice(out);
            sums[n..].fill(W::ZERO);
        }
        tiles::<S, W>(width, lhs, columns, column_stride, bytemuck::cast_slice_mut(sums), padded / lanes);
        for (sums, out) in sums.chunks_exact(padded).zip(out.chunks_exact_mut(n)) {
            out.copy_from_slice(&sums[..n]);
        }
        Ok(())
    }
}

/// A matrix with rows of `padded` elements, zeros at their ends.
#[inline(always)]
fn copy<W: Vectors>(matrix: Matrix<'_, W>, padded: usize, out: &mut [W]) {
    let n = matrix.columns;
    for (row, out) in out.chunks_exact_mut(padded).enumerate() {
        let start = matrix.start + row * matrix.row_stride;
        for (column, out) in out[..n].iter_mut().enumerate() {
            *out = matrix.elements[start + column * matrix.column_stride];
        }
        out[n..].fill(W::ZERO);
    }
}

#[inline(always)]
fn tiles<S: Simd, W: Vectors>(
    width: S,
    lhs: Matrix<'_, W>,
    columns: &[W::Vector<S>],
    column_stride: usize,
    sums: &mut [W::Vector<S>],
    stride: usize,
) {
    let rows = &lhs.elements[lhs.start..];
    for first in (0..stride).step_by(2) {
        for row in (0..lhs.rows).step_by(ROWS) {
            let rows = Rows { elements: &rows[row * lhs.row_stride..], lhs };
            let columns = Columns { vectors: &columns[first..], stride: column_stride };
            let sums = &mut sums[row * stride + first..];
            with_rows!(ROWS.min(lhs.rows - row), R => tile::<S, W, R>(width, &rows, &columns, sums, stride));
        }
    }
}

struct Rows<'a, W> {
    elements: &'a [W],
    lhs: Matrix<'a, W>,
}

struct Columns<'a, V: Pod> {
    vectors: &'a [V],
    stride: usize,
}

/// `R` rows times two vectors of columns.
#[inline(always)]
fn tile<S: Simd, W: Vectors, const R: usize>(
    width: S,
    rows: &Rows<'_, W>,
    columns: &Columns<'_, W::Vector<S>>,
    sums: &mut [W::Vector<S>],
    stride: usize,
) {
    let (row_stride, depth_stride) = (rows.lhs.row_stride, rows.lhs.column_stride);
    let mut held: [[W::Vector<S>; 2]; R] =
        std::array::from_fn(|row| [sums[row * stride], sums[row * stride + 1]]);
    for depth in 0..rows.lhs.columns {
        let column = &columns.vectors[depth * columns.stride..][..2];
        let row = &rows.elements[depth * depth_stride..];
        for (place, held) in held.iter_mut().enumerate() {
            let x = W::splat(width, row[place * row_stride]);
            held[0] = W::multiply_add(width, x, column[0], held[0]);
            held[1] = W::multiply_add(width, x, column[1], held[1]);
        }
    }
    for (row, held) in held.into_iter().enumerate() {
        [sums[row * stride], sums[row * stride + 1]] = held;
    }
}
