//! Matrix products.
//!
//! Both operands are packed into panels and multiplied tile by tile; see
//! [`tile`] for the order of sums, on which everything above relies. `f32` and
//! `f64` are multiplied in themselves, half types as `f32` widened while they
//! are packed, and bf16 by pairs where the CPU has instructions for it.

#[cfg(target_arch = "x86_64")]
mod few;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod product;
mod scheme;
mod small;
mod tile;
#[cfg(target_arch = "x86_64")]
mod turn;

use half::{bf16, f16};
use weightloom_layout::Shape;

use super::make;
use super::strides::Walk;
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::try_share;
use crate::tensor::Tensor;
use crate::view::View;
pub(crate) use pack::as_columns;
use product::multiply;
pub(crate) use scheme::Vectors;
use scheme::Widened;
pub(crate) use small::product;

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
    /// Added to every row.
    pub(crate) bias: Option<&'a [T]>,
    /// Added element by element.
    pub(crate) residual: Option<&'a [T]>,
}

impl<T> Finish<'_, T> {
    const NOTHING: Self = Self { bias: None, residual: None };

    fn is_nothing(&self) -> bool {
        self.bias.is_none() && self.residual.is_none()
    }
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

    /// Rows of `stride` elements, of which the first `columns` are taken.
    pub(crate) fn strided(elements: &'a [T], rows: usize, columns: usize, stride: usize) -> Self {
        Self { elements, start: 0, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Some of the rows.
    pub(crate) fn rows(mut self, from: usize, count: usize) -> Self {
        self.start += from * self.row_stride;
        self.rows = count;
        self
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

/// `a @ b` for the last two dims, over equal batch dims. Any strides.
pub(crate) fn matmul<T: Multiply>(
    a: &Tensor,
    b: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    shape: &Shape,
) -> Result<Tensor, TensorError> {
    let (xs, ys): (&[T], &[T]) = (a.storage_elements("matmul")?, b.storage_elements("matmul")?);
    let (va, vb) = (a.view(), b.view());
    let bias = bias.map(|bias| bias.elements::<T>("linear")).transpose()?;
    let residual = residual.map(|residual| residual.elements::<T>("linear")).transpose()?;
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
            starts.extend(
                places.map(|i| (va.offset + oa + i * row_strides[0], vb.offset + ob + i * row_strides[1])),
            );
        });
        // Many small products go side by side, large ones are each cut up.
        let spread = if starts.len() > 1 && m * n * k <= PARALLEL * 16 {
            Spread::Alone
        } else {
            Spread::for_work(m * n * k)
        };
        let one = |(number, (&(start_a, start_b), out)): (usize, (&(usize, usize), &mut [T]))| {
            let (lhs, rhs) = (Matrix::in_view(xs, va, start_a), Matrix::in_view(ys, vb, start_b));
            let residual = residual.map(|residual| &residual[number * m * n..(number + 1) * m * n]);
            T::multiply(lhs, rhs, out, &Finish { bias, residual }, spread)
        };
        if spread == Spread::Alone && m * n * k * starts.len() > PARALLEL {
            try_share(starts.iter().zip(out.chunks_exact_mut(m * n)).enumerate(), one)
        } else {
            starts.iter().zip(out.chunks_exact_mut(m * n)).enumerate().try_for_each(one)
        }
    })
}

/// Rows in consecutive groups, each times its own matrix.
pub(crate) fn grouped_matmul<T: Multiply>(
    x: &Tensor,
    weights: &Tensor,
    groups: &[usize],
) -> Result<Tensor, TensorError> {
    let (values, matrices) =
        (x.elements::<T>("grouped_matmul")?, weights.storage_elements::<T>("grouped_matmul")?);
    let (k, n) = (x.shape()[1], weights.shape()[2]);
    let view = weights.view();
    make::<T>(&Shape::new(&[x.shape()[0], n])?, |out| {
        let mut first = 0;
        for (number, &rows) in groups.iter().enumerate() {
            let lhs = Matrix::new(&values[first * k..(first + rows) * k], rows, k);
            let rhs = Matrix::in_view(matrices, view, view.offset + number * view.strides[0]);
            let spread = Spread::for_work(rows * k * n);
            T::multiply(lhs, rhs, &mut out[first * n..(first + rows) * n], &Finish::NOTHING, spread)?;
            first += rows;
        }
        Ok(())
    })
}

/// The gradient of a grouped product's matrices: for each group its rows,
/// transposed, times the gradients of its results.
pub(crate) fn grouped_matmul_gradient<T: Multiply>(
    x: &Tensor,
    gradient: &Tensor,
    groups: &[usize],
) -> Result<Tensor, TensorError> {
    let (values, gs) = (x.elements::<T>("grouped_matmul")?, gradient.elements::<T>("grouped_matmul")?);
    let (k, n) = (x.shape()[1], gradient.shape()[1]);
    make::<T>(&Shape::new(&[groups.len(), k, n])?, |out| {
        let mut first = 0;
        for (number, &rows) in groups.iter().enumerate() {
            let lhs = Matrix::new(&values[first * k..(first + rows) * k], rows, k).transposed();
            let rhs = Matrix::new(&gs[first * n..(first + rows) * n], rows, n);
            let spread = Spread::for_work(rows * k * n);
            T::multiply(lhs, rhs, &mut out[number * k * n..(number + 1) * k * n], &Finish::NOTHING, spread)?;
            first += rows;
        }
        Ok(())
    })
}
