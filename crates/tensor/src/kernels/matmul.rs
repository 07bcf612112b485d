//! Matrix products.
//!
//! Both operands are packed into panels and multiplied tile by tile; see
//! [`tile`] for the order of sums, on which everything above relies. `f32` and
//! `f64` are multiplied in themselves, half types as `f32` widened while they
//! are packed, and bf16 by pairs where the CPU has instructions for it.

mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod product;
mod scheme;
mod tile;

use half::{bf16, f16};
use rayon::prelude::*;
use shardloom_layout::Shape;

use super::make;
use super::strides::Walk;
use crate::element::Float;
use crate::error::TensorError;
use crate::tensor::Tensor;
use crate::view::View;
use product::multiply;
use scheme::Widened;

/// Multiply-adds above which a product is spread over threads.
const PARALLEL: usize = 1 << 16;

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    elements: &'a [T],
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

/// What is done with a sum before it is rounded and stored.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a, T> {
    pub(crate) store: Store,
    /// Added to every row.
    pub(crate) bias: Option<&'a [T]>,
    /// Added element by element.
    pub(crate) residual: Option<&'a [T]>,
}

impl<T> Finish<'_, T> {
    pub(crate) const SET: Self = Self { store: Store::Set, bias: None, residual: None };
    pub(crate) const ADD: Self = Self { store: Store::Add, bias: None, residual: None };
}

/// Which threads work on a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    Alone,
    Pool,
}

impl Spread {
    fn for_work(multiply_adds: usize) -> Self {
        if multiply_adds > PARALLEL { Self::Pool } else { Self::Alone }
    }
}

impl<'a, T> Matrix<'a, T> {
    /// A row-major matrix.
    pub(crate) fn new(elements: &'a [T], rows: usize, columns: usize) -> Self {
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

    /// The matrix that a view shows in its last two dims, from a start.
    fn in_view(elements: &'a [T], view: &View, start: usize) -> Self {
        let batch = view.shape.ndim() - 2;
        Self {
            elements,
            start,
            rows: view.shape[batch],
            columns: view.shape[batch + 1],
            row_stride: view.strides[batch],
            column_stride: view.strides[batch + 1],
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

/// An element type that matrices are made of.
pub(crate) trait Multiply: Float {
    /// `lhs @ rhs` into a row-major result.
    fn multiply(
        lhs: Matrix<'_, Self>,
        rhs: Matrix<'_, Self>,
        out: &mut [Self],
        finish: &Finish<'_, Self>,
        spread: Spread,
    ) -> Result<(), TensorError>;
}

macro_rules! multiply_widened {
    ($($element:ty),*) => {
        $(impl Multiply for $element {
            fn multiply(
                lhs: Matrix<'_, Self>,
                rhs: Matrix<'_, Self>,
                out: &mut [Self],
                finish: &Finish<'_, Self>,
                spread: Spread,
            ) -> Result<(), TensorError> {
                multiply::<Widened<Self>>(lhs, rhs, out, finish, spread)
            }
        })*
    };
}

multiply_widened!(f64, f32, f16);

impl Multiply for bf16 {
    fn multiply(
        lhs: Matrix<'_, Self>,
        rhs: Matrix<'_, Self>,
        out: &mut [Self],
        finish: &Finish<'_, Self>,
        spread: Spread,
    ) -> Result<(), TensorError> {
        #[cfg(target_arch = "x86_64")]
        if crate::vectors::Level::current() >= crate::vectors::Level::Avx512Bf16 {
            return multiply::<scheme::Pairs>(lhs, rhs, out, finish, spread);
        }
        multiply::<Widened<Self>>(lhs, rhs, out, finish, spread)
    }
}

/// `lhs @ rhs` into a row-major matrix, on this thread.
pub(crate) fn product<T: Multiply>(
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    out: &mut [T],
    store: Store,
) -> Result<(), TensorError> {
    let finish = if store == Store::Set { Finish::SET } else { Finish::ADD };
    T::multiply(lhs, rhs, out, &finish, Spread::Alone)
}

/// `a @ b` for the last two dims, over batch dims that have been expanded to be
/// equal. Any strides.
pub(crate) fn matmul<T: Multiply>(
    a: &Tensor,
    va: &View,
    b: &Tensor,
    vb: &View,
    shape: &Shape,
    finish: &Finish<'_, T>,
) -> Result<Tensor, TensorError> {
    let (xs, ys): (&[T], &[T]) = (a.storage_elements("matmul")?, b.storage_elements("matmul")?);
    let batch = shape.ndim() - 2;
    let (m, n, k) = (shape[batch], shape[batch + 1], va.shape[batch + 1]);
    let walk = Walk::new(&shape[..batch], [&va.strides[..batch], &vb.strides[..batch]]);
    make::<T>(shape, |out| {
        if out.is_empty() {
            return Ok(());
        }
        let row_strides = walk.row_strides();
        let rows = shape[..batch].iter().product::<usize>() / walk.row();
        let mut starts = Vec::with_capacity(rows * walk.row());
        walk.rows(0..rows, |[oa, ob]| {
            let places = 0..walk.row();
            starts.extend(places.map(|i| {
                (va.offset + oa + i * row_strides[0], vb.offset + ob + i * row_strides[1])
            }));
        });
        // Many small products go side by side, large ones are each cut up.
        let spread = if starts.len() > 1 && m * n * k <= PARALLEL * 16 {
            Spread::Alone
        } else {
            Spread::for_work(m * n * k)
        };
        let one = |(&(start_a, start_b), out): (&(usize, usize), &mut [T])| {
            let (lhs, rhs) = (Matrix::in_view(xs, va, start_a), Matrix::in_view(ys, vb, start_b));
            T::multiply(lhs, rhs, out, finish, spread)
        };
        if spread == Spread::Alone && m * n * k * starts.len() > PARALLEL {
            starts.par_iter().zip(out.par_chunks_exact_mut(m * n)).try_for_each(one)
        } else {
            starts.iter().zip(out.chunks_exact_mut(m * n)).try_for_each(one)
        }
    })
}
