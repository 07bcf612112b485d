//! Matrix products, through the `gemm` crate.
//!
//! The one place in this crate that needs `unsafe`: `gemm` takes pointers and
//! strides. Every offset it can form is checked against the slices first.

use gemm::Parallelism;
use shardloom_layout::Shape;

use super::make;
use super::strides::Walk;
use crate::element::Wide;
use crate::error::TensorError;
use crate::tensor::Tensor;
use crate::view::View;

/// Multiply-adds above which a product is spread over threads.
const PARALLEL: usize = 1 << 16;

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, W> {
    elements: &'a [W],
    start: usize,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// What becomes of what was in the result before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// It is overwritten.
    Set,
    /// It is added to.
    Add,
}

impl<'a, W> Matrix<'a, W> {
    /// A row-major matrix.
    pub(crate) fn new(elements: &'a [W], rows: usize, columns: usize) -> Self {
        Self { elements, start: 0, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    fn is_inside(&self) -> bool {
        if self.rows == 0 || self.columns == 0 {
            return true;
        }
        let last = self.start + (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride;
        last < self.elements.len()
    }
}

/// `a @ b` for the last two dims, over batch dims that have been expanded to be
/// equal. Any strides.
pub(crate) fn matmul<W: Wide>(
    a: &Tensor,
    va: &View,
    b: &Tensor,
    vb: &View,
    shape: &Shape,
) -> Result<Tensor, TensorError> {
    let (xs, ys): (&[W], &[W]) = (a.storage_elements("matmul")?, b.storage_elements("matmul")?);
    let batch = shape.ndim() - 2;
    let (m, n, k) = (shape[batch], shape[batch + 1], va.shape[batch + 1]);
    let walk = Walk::new(&shape[..batch], [&va.strides[..batch], &vb.strides[..batch]]);
    make::<W>(shape, |out| {
        if k == 0 || out.is_empty() {
            out.fill(W::zero());
            return Ok(());
        }
        let row_strides = walk.row_strides();
        let mut products = out.chunks_exact_mut(m * n);
        let rows = shape[..batch].iter().product::<usize>() / walk.row();
        walk.rows(0..rows, |[oa, ob]| {
            for i in 0..walk.row() {
                let Some(out) = products.next() else { return };
                let lhs = matrix(xs, va, va.offset + oa + i * row_strides[0]);
                let rhs = matrix(ys, vb, vb.offset + ob + i * row_strides[1]);
                let work = m * n * k;
                let threads = if work > PARALLEL { Parallelism::Rayon(0) } else { Parallelism::None };
                multiply(lhs, rhs, out, Store::Set, threads);
            }
        });
        Ok(())
    })
}

fn matrix<'a, W>(elements: &'a [W], view: &View, start: usize) -> Matrix<'a, W> {
    let batch = view.shape.ndim() - 2;
    Matrix {
        elements,
        start,
        rows: view.shape[batch],
        columns: view.shape[batch + 1],
        row_stride: view.strides[batch],
        column_stride: view.strides[batch + 1],
    }
}

/// `lhs @ rhs` into a row-major matrix, on this thread.
pub(crate) fn product<W: Wide>(lhs: Matrix<'_, W>, rhs: Matrix<'_, W>, out: &mut [W], store: Store) {
    multiply(lhs, rhs, out, store, Parallelism::None);
}

fn multiply<W: Wide>(
    lhs: Matrix<'_, W>,
    rhs: Matrix<'_, W>,
    out: &mut [W],
    store: Store,
    threads: Parallelism,
) {
    let (m, k, n) = (lhs.rows, lhs.columns, rhs.columns);
    assert!(lhs.is_inside() && rhs.is_inside() && rhs.rows == k && out.len() == m * n);
    let stride = |stride: usize| stride as isize;
    // SAFETY: both matrices lie inside their slices, which the assertion
    // checked, and `out` is a row-major m × n matrix that is borrowed for
    // writing; gemm reads and writes nothing else.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(n),
            store == Store::Add,
            lhs.elements.as_ptr().add(lhs.start),
            stride(lhs.column_stride),
            stride(lhs.row_stride),
            rhs.elements.as_ptr().add(rhs.start),
            stride(rhs.column_stride),
            stride(rhs.row_stride),
            if store == Store::Add { W::one() } else { W::zero() },
            W::one(),
            false,
            false,
            false,
            threads,
        );
    }
}
