//! Softmax of rows.
//!
//! Rows are independent, so that a result does not depend on the rest of the batch.

use std::marker::PhantomData;

use num_traits::{Float as _, One as _};
use pulp::Simd;

use super::{lanes, make, rewrite_pieces};
use crate::backend::meta::{output_in_place, output_like};
use crate::backend::{Cpu, Meta};
use crate::element::{Float, Wide, with_float};
use crate::error::Result;
use crate::parallel::{fill, kernel};
use crate::tensor::Tensor;

/// Softmax kernels.
pub(crate) trait SoftmaxKernels {
    /// Softmax or log-softmax of rows of this length.
    fn softmax(&self, op: Softmax, x: &Tensor, row: usize) -> Result<Tensor>;

    /// Its gradient, from its result.
    fn softmax_gradient(&self, op: Softmax, y: &Tensor, gradient: Tensor, row: usize) -> Result<Tensor>;
}

impl SoftmaxKernels for Cpu {
    fn softmax(&self, op: Softmax, x: &Tensor, row: usize) -> Result<Tensor> {
        with_float!(op.name(), x.dtype(), T => softmax::<T>(op, x, row))
    }

    fn softmax_gradient(&self, op: Softmax, y: &Tensor, gradient: Tensor, row: usize) -> Result<Tensor> {
        with_float!(op.name(), y.dtype(), T => softmax_gradient::<T>(op, y, gradient, row))
    }
}

impl SoftmaxKernels for Meta {
    fn softmax(&self, op: Softmax, x: &Tensor, _: usize) -> Result<Tensor> {
        output_like(op.name(), 4, &[x])
    }

    fn softmax_gradient(&self, op: Softmax, y: &Tensor, gradient: Tensor, _: usize) -> Result<Tensor> {
        output_in_place(op.name(), 4, &[y], gradient)
    }
}

/// Softmax or log-softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Softmax {
    Plain,
    Log,
}

impl Softmax {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "softmax",
            Self::Log => "log_softmax",
        }
    }
}

pub(super) fn count<W: Wide>(count: usize) -> W {
    W::from_usize(count).unwrap_or_else(W::one)
}

/// The largest value of a row and the sum of `exp(x - largest)`.
#[inline(always)]
pub(super) fn spread<S: Simd, T: Float>(row: &[T]) -> (T::Wide, T::Wide) {
    let most = lanes::largest(row);
    (most, lanes::sum(row, |x| (x - most).exp_negative::<S>()))
}

kernel! {
    SoftmaxKernel<T: Float> { values: &'k [T], row: usize }
    |start, piece| {
        for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
            if T::COMPUTES_IN_ITSELF {
                // Exponentials are expensive: keep them and scale.
                let most = lanes::largest(x);
                let scale = T::Wide::one() / lanes::map_sum(x, out, |x| (x - most).exp_negative::<S>());
                for out in out.iter_mut() {
                    *out = T::narrow(out.widen() * scale);
                }
            } else {
                let (most, sum) = spread::<S, T>(x);
                let scale = T::Wide::one() / sum;
                for (out, x) in out.iter_mut().zip(x) {
                    *out = T::narrow((x.widen() - most).exp_negative::<S>() * scale);
                }
            }
        }
    }
}

kernel! {
    LogSoftmaxKernel<T: Float> { values: &'k [T], row: usize }
    |start, piece| {
        for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
            let (most, sum) = spread::<S, T>(x);
            let shift = most + sum.ln();
            for (out, x) in out.iter_mut().zip(x) {
                *out = T::narrow(x.widen() - shift);
            }
        }
    }
}

kernel! {
    /// From softmax `y`: `y · (g - Σ g·y)` in place of `g`.
    SoftmaxGradientKernel<T: Float> { ys: &'k [T], row: usize }
    |start, piece| {
        for (g, y) in piece.chunks_exact_mut(row).zip(ys[start..].chunks_exact(row)) {
            let dot = lanes::sum2(y, g, |y, g| y * g);
            for (g, y) in g.iter_mut().zip(y) {
                *g = T::narrow(y.widen() * (g.widen() - dot));
            }
        }
    }
}

kernel! {
    /// From log-softmax `y`: `g - exp(y) · Σ g` in place of `g`.
    LogSoftmaxGradientKernel<T: Float> { ys: &'k [T], row: usize }
    |start, piece| {
        for (g, y) in piece.chunks_exact_mut(row).zip(ys[start..].chunks_exact(row)) {
            let sum = lanes::sum(g, |g| g);
            for (g, y) in g.iter_mut().zip(y) {
                *g = T::narrow(g.widen() - y.widen().exp_negative::<S>() * sum);
            }
        }
    }
}

/// Softmax or log-softmax of every row.
pub(crate) fn softmax<T: Float>(op: Softmax, x: &Tensor, row: usize) -> Result<Tensor> {
    let values = x.elements::<T>(op.name())?;
    make::<T>(x.shape(), |out| {
        match op {
            Softmax::Plain => fill(out, row, &SoftmaxKernel { values, row, element: PhantomData }),
            Softmax::Log => fill(out, row, &LogSoftmaxKernel { values, row, element: PhantomData }),
        }
        Ok(())
    })
}

/// Its gradient, from its result.
pub(crate) fn softmax_gradient<T: Float>(
    op: Softmax,
    y: &Tensor,
    gradient: Tensor,
    row: usize,
) -> Result<Tensor> {
    let ys = y.elements::<T>(op.name())?;
    match op {
        Softmax::Plain => {
            let kernel = SoftmaxGradientKernel { ys, row, element: PhantomData };
            rewrite_pieces::<T>(gradient, op.name(), row, &kernel)
        }
        Softmax::Log => {
            let kernel = LogSoftmaxGradientKernel { ys, row, element: PhantomData };
            rewrite_pieces::<T>(gradient, op.name(), row, &kernel)
        }
    }
}
