//! Matrix products.
//!
//! GEMM packs both operands into panels and multiplies them tile by tile; see
//! [`microkernel`] for the order of sums, on which all guarantees about bits rest.
//! `f32` and `f64` are multiplied as they are, half types as `f32` widened while
//! packing, and bf16 in pairs where the CPU has bf16 dot products.

#[cfg(target_arch = "x86_64")]
mod bf16_dot;
mod gemm;
mod microkernel;
mod pack;
mod pack_format;
mod small_gemm;
#[cfg(target_arch = "x86_64")]
mod small_m;
#[cfg(target_arch = "x86_64")]
mod transpose;

use half::{bf16, f16};
use weightloom_layout::Shape;

use super::cross_entropy::wide_dtype;
use super::make;
use super::strides::Walk;
use crate::backend::meta::{output, volume};
use crate::backend::{Cpu, Meta};
use crate::element::Float;
use crate::element::with_float;
use crate::error::Result;
use crate::meter::counts_for_gpu;
use crate::parallel::try_share;
use crate::tensor::Tensor;
use crate::view::View;
use gemm::multiply;
pub(crate) use pack::as_columns;
pub(crate) use pack_format::Vectors;
use pack_format::Widened;
pub(crate) use small_gemm::product;

/// Matrix product kernels.
pub(crate) trait MatmulKernels {
    /// `a @ b + bias + residual` over equal batch dims; `a` and `b` of any
    /// strides.
    fn matmul(
        &self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor>;

    /// Adds the product of two matrices to a sum of many, which is wide: halves would
    /// lose small additions.
    fn add_product(&self, sum: Option<Tensor>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        rounded_product_added(sum, a, b)
    }

    /// The gradient of a weight, `gradientᵀ @ x`: a sum over all rows of a batch.
    fn weight_gradient(&self, gradient: &Tensor, x: &Tensor) -> Result<Tensor> {
        gradient.transpose(0, 1)?.matmul(x)
    }

    /// Consecutive groups of rows, each times its own matrix; `weights` of any
    /// strides.
    fn grouped_matmul(&self, x: &Tensor, weights: &Tensor, groups: &[usize]) -> Result<Tensor>;

    /// The gradient of the matrices of a grouped product.
    fn grouped_matmul_gradient(&self, x: &Tensor, gradient: &Tensor, groups: &[usize]) -> Result<Tensor>;
}

/// Rounds a product before it is added.
fn rounded_product_added(sum: Option<Tensor>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let product = a.matmul(b)?.cast(wide_dtype(a.dtype()))?;
    match sum {
        Some(mut sum) => {
            sum.add_assign(&product)?;
            Ok(sum)
        }
        None => Ok(product),
    }
}

impl MatmulKernels for Cpu {
    fn matmul(
        &self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor> {
        with_float!("matmul", a.dtype(), T => matmul::<T>(a, b, bias, residual, shape))
    }

    fn grouped_matmul(&self, x: &Tensor, weights: &Tensor, groups: &[usize]) -> Result<Tensor> {
        with_float!("grouped_matmul", x.dtype(), T => grouped_matmul::<T>(x, weights, groups))
    }

    fn grouped_matmul_gradient(&self, x: &Tensor, gradient: &Tensor, groups: &[usize]) -> Result<Tensor> {
        with_float!("grouped_matmul", x.dtype(), T => grouped_matmul_gradient::<T>(x, gradient, groups))
    }
}

impl MatmulKernels for Meta {
    fn add_product(&self, sum: Option<Tensor>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        match sum {
            // Kernels of GPUs add to wide sums as they are.
            Some(sum) if counts_for_gpu() => Ok(sum),
            None if counts_for_gpu() => {
                let shape = Shape::new(&[a.shape()[0], b.shape()[1]])?;
                output("matmul", 0, &[a, b], &shape, wide_dtype(a.dtype()))
            }
            sum => rounded_product_added(sum, a, b),
        }
    }

    fn matmul(
        &self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor> {
        let depth = a.shape()[a.shape().ndim() - 1] as u64;
        let reads: Vec<&Tensor> = [Some(a), Some(b), bias, residual].into_iter().flatten().collect();
        let extra = reads.len() as u64 - 2;
        output("matmul", volume(shape) * (2 * depth + extra), &reads, shape, a.dtype())
    }

    fn grouped_matmul(&self, x: &Tensor, weights: &Tensor, _: &[usize]) -> Result<Tensor> {
        let (rows, depth, columns) = (x.shape()[0], x.shape()[1], weights.shape()[2]);
        let flops = 2 * (rows * depth * columns) as u64;
        output("grouped_matmul", flops, &[x, weights], &Shape::new(&[rows, columns])?, x.dtype())
    }

    fn grouped_matmul_gradient(&self, x: &Tensor, gradient: &Tensor, groups: &[usize]) -> Result<Tensor> {
        let (rows, depth, columns) = (x.shape()[0], x.shape()[1], gradient.shape()[1]);
        let flops = 2 * (rows * depth * columns) as u64;
        let shape = Shape::new(&[groups.len(), depth, columns])?;
        output("grouped_matmul", flops, &[x, gradient], &shape, x.dtype())
    }
}

/// Multiply-adds above which a product uses several threads.
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

/// Whether a product overwrites or accumulates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// Overwrites the result.
    Set,
    /// Adds to the result.
    Add,
}

/// The epilogue: terms added to a sum before it is rounded and stored.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<'a, T> {
    /// Added to every row.
    pub(crate) bias: Option<&'a [T]>,
    /// Added element by element.
    pub(crate) residual: Option<&'a [T]>,
}

impl<T> Epilogue<'_, T> {
    const NONE: Self = Self { bias: None, residual: None };

    fn is_empty(&self) -> bool {
        self.bias.is_none() && self.residual.is_none()
    }
}

/// The threads that compute a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threading {
    Single,
    Pool,
}

impl Threading {
    fn for_work(multiply_adds: usize) -> Self {
        if multiply_adds > PARALLEL { Self::Pool } else { Self::Single }
    }
}

impl<'a, T> Matrix<'a, T> {
    /// A row-major matrix.
    pub(crate) fn new(elements: &'a [T], rows: usize, columns: usize) -> Self {
        Self { elements, start: 0, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The transposed matrix.
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

    /// The matrix in the last two dims of a view, at an offset.
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

/// An element type of matrices.
pub(crate) trait Multiply: Float {
    /// `lhs @ rhs` into a row-major result.
    fn multiply(
        lhs: Matrix<'_, Self>,
        rhs: Matrix<'_, Self>,
        out: &mut [Self],
        epilogue: &Epilogue<'_, Self>,
        threading: Threading,
    ) -> Result<()>;
}

macro_rules! multiply_widened {
    ($($element:ty),*) => {
        $(impl Multiply for $element {
            fn multiply(
                lhs: Matrix<'_, Self>,
                rhs: Matrix<'_, Self>,
                out: &mut [Self],
                epilogue: &Epilogue<'_, Self>,
                threading: Threading,
            ) -> Result<()> {
                multiply::<Widened<Self>>(lhs, rhs, out, epilogue, threading)
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
        epilogue: &Epilogue<'_, Self>,
        threading: Threading,
    ) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        if crate::vectors::Level::current() >= crate::vectors::Level::Avx512Bf16 {
            return multiply::<pack_format::Bf16Pairs>(lhs, rhs, out, epilogue, threading);
        }
        multiply::<Widened<Self>>(lhs, rhs, out, epilogue, threading)
    }
}

/// The first elements of both matrices of each batch, counted from the views' own.
pub(crate) fn batch_starts(batch: &[usize], views: [&View; 2]) -> Vec<[u64; 2]> {
    let walk = Walk::new(batch, views.map(|view| &view.strides[..batch.len()]));
    let strides = walk.row_strides();
    let rows = batch.iter().product::<usize>() / walk.row();
    let mut starts = Vec::with_capacity(rows * walk.row());
    walk.rows(0..rows, |[a, b]| {
        starts.extend((0..walk.row()).map(|i| [(a + i * strides[0]) as u64, (b + i * strides[1]) as u64]));
    });
    starts
}

/// `a @ b` for the last two dims, over equal batch dims. Any strides.
pub(crate) fn matmul<T: Multiply>(
    a: &Tensor,
    b: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    shape: &Shape,
) -> Result<Tensor> {
    let (xs, ys): (&[T], &[T]) = (a.storage_elements("matmul")?, b.storage_elements("matmul")?);
    let (va, vb) = (a.view(), b.view());
    let bias = bias.map(|bias| bias.elements::<T>("linear")).transpose()?;
    let residual = residual.map(|residual| residual.elements::<T>("linear")).transpose()?;
    let batch = shape.ndim() - 2;
    let (m, n, k) = (shape[batch], shape[batch + 1], va.shape[batch + 1]);
    make::<T>(shape, |out| {
        if out.is_empty() {
            return Ok(());
        }
        let starts = batch_starts(&shape[..batch], [va, vb]);
        // Run many small products in parallel, and split large ones.
        let threading = if starts.len() > 1 && m * n * k <= PARALLEL * 16 {
            Threading::Single
        } else {
            Threading::for_work(m * n * k)
        };
        let one = |(number, (&[start_a, start_b], out)): (usize, (&[u64; 2], &mut [T]))| {
            let lhs = Matrix::in_view(xs, va, va.offset + start_a as usize);
            let rhs = Matrix::in_view(ys, vb, vb.offset + start_b as usize);
            let residual = residual.map(|residual| &residual[number * m * n..(number + 1) * m * n]);
            T::multiply(lhs, rhs, out, &Epilogue { bias, residual }, threading)
        };
        if threading == Threading::Single && m * n * k * starts.len() > PARALLEL {
            try_share(starts.iter().zip(out.chunks_exact_mut(m * n)).enumerate(), one)
        } else {
            starts.iter().zip(out.chunks_exact_mut(m * n)).enumerate().try_for_each(one)
        }
    })
}

/// Consecutive groups of rows, each times its own matrix.
pub(crate) fn grouped_matmul<T: Multiply>(x: &Tensor, weights: &Tensor, groups: &[usize]) -> Result<Tensor> {
    let (values, matrices) =
        (x.elements::<T>("grouped_matmul")?, weights.storage_elements::<T>("grouped_matmul")?);
    let (k, n) = (x.shape()[1], weights.shape()[2]);
    let view = weights.view();
    make::<T>(&Shape::new(&[x.shape()[0], n])?, |out| {
        let mut first = 0;
        for (number, &rows) in groups.iter().enumerate() {
            let lhs = Matrix::new(&values[first * k..(first + rows) * k], rows, k);
            let rhs = Matrix::in_view(matrices, view, view.offset + number * view.strides[0]);
            let threading = Threading::for_work(rows * k * n);
            T::multiply(lhs, rhs, &mut out[first * n..(first + rows) * n], &Epilogue::NONE, threading)?;
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
) -> Result<Tensor> {
    let (values, gs) = (x.elements::<T>("grouped_matmul")?, gradient.elements::<T>("grouped_matmul")?);
    let (k, n) = (x.shape()[1], gradient.shape()[1]);
    make::<T>(&Shape::new(&[groups.len(), k, n])?, |out| {
        let mut first = 0;
        for (number, &rows) in groups.iter().enumerate() {
            let lhs = Matrix::new(&values[first * k..(first + rows) * k], rows, k).transposed();
            let rhs = Matrix::new(&gs[first * n..(first + rows) * n], rows, n);
            let threading = Threading::for_work(rows * k * n);
            T::multiply(
                lhs,
                rhs,
                &mut out[number * k * n..(number + 1) * k * n],
                &Epilogue::NONE,
                threading,
            )?;
            first += rows;
        }
        Ok(())
    })
}
