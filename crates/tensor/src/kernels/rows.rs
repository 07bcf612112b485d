//! Fused work on whole rows: softmax, cross-entropy, embedding.
//!
//! Each row is read while it is in the cache and computed by itself, so its
//! result does not depend on the rows beside it.

use std::marker::PhantomData;

use num_traits::{Float as _, One as _, Zero as _};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use shardloom_layout::Shape;

use super::{lanes, make};
use crate::element::{Float, Wide};
use crate::error::TensorError;
use crate::parallel::{fill, kernel, pieces};
use crate::tensor::Tensor;
use crate::vectors::dispatch;

/// The largest value of a row and the sum of `exp(x - largest)`.
#[inline(always)]
fn spread<T: Float>(row: &[T]) -> (T::Wide, T::Wide) {
    let most = lanes::largest(row);
    (most, lanes::sum(row, |x| (x - most).exponential()))
}

kernel! {
    SoftmaxKernel<T: Float> { values: &'k [T], row: usize }
    |start, piece| {
        for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
            if T::COMPUTES_IN_ITSELF {
                // Exponentials are dear: keep them and scale.
                let most = lanes::largest(x);
                for (out, x) in out.iter_mut().zip(x) {
                    *out = T::narrow((x.widen() - most).exponential());
                }
                let scale = T::Wide::one() / lanes::sum(out, |x| x);
                for out in out.iter_mut() {
                    *out = T::narrow(out.widen() * scale);
                }
            } else {
                let (most, sum) = spread(x);
                let scale = T::Wide::one() / sum;
                for (out, x) in out.iter_mut().zip(x) {
                    *out = T::narrow((x.widen() - most).exponential() * scale);
                }
            }
        }
    }
}

kernel! {
    LogSoftmaxKernel<T: Float> { values: &'k [T], row: usize }
    |start, piece| {
        for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
            let (most, sum) = spread(x);
            let shift = most + sum.ln();
            for (out, x) in out.iter_mut().zip(x) {
                *out = T::narrow(x.widen() - shift);
            }
        }
    }
}

kernel! {
    SoftmaxGradientKernel<T: Float> { ys: &'k [T], gs: &'k [T], row: usize }
    |start, piece| {
        let rows = ys[start..].chunks_exact(row).zip(gs[start..].chunks_exact(row));
        for (out, (y, g)) in piece.chunks_exact_mut(row).zip(rows) {
            let dot = lanes::sum2(y, g, |y, g| y * g);
            for ((out, y), g) in out.iter_mut().zip(y).zip(g) {
                *out = T::narrow(y.widen() * (g.widen() - dot));
            }
        }
    }
}

kernel! {
    LogSoftmaxGradientKernel<T: Float> { ys: &'k [T], gs: &'k [T], row: usize }
    |start, piece| {
        let rows = ys[start..].chunks_exact(row).zip(gs[start..].chunks_exact(row));
        for (out, (y, g)) in piece.chunks_exact_mut(row).zip(rows) {
            let sum = lanes::sum(g, |g| g);
            for ((out, y), g) in out.iter_mut().zip(y).zip(g) {
                *out = T::narrow(g.widen() - y.widen().exponential() * sum);
            }
        }
    }
}

/// Softmax of every row.
pub(crate) fn softmax<T: Float>(x: &Tensor, row: usize) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("softmax")?;
    make::<T>(x.shape(), |out| {
        fill(out, row, &SoftmaxKernel { values, row, element: PhantomData });
        Ok(())
    })
}

/// Log-softmax of every row.
pub(crate) fn log_softmax<T: Float>(x: &Tensor, row: usize) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("log_softmax")?;
    make::<T>(x.shape(), |out| {
        fill(out, row, &LogSoftmaxKernel { values, row, element: PhantomData });
        Ok(())
    })
}

/// From softmax `y` and its gradient: `y · (g - Σ g·y)`.
pub(crate) fn softmax_gradient<T: Float>(
    y: &Tensor,
    gradient: &Tensor,
    row: usize,
) -> Result<Tensor, TensorError> {
    let (ys, gs) = (y.elements::<T>("softmax")?, gradient.elements::<T>("softmax")?);
    make::<T>(y.shape(), |out| {
        fill(out, row, &SoftmaxGradientKernel { ys, gs, row, element: PhantomData });
        Ok(())
    })
}

/// From log-softmax `y` and its gradient: `g - exp(y) · Σ g`.
pub(crate) fn log_softmax_gradient<T: Float>(
    y: &Tensor,
    gradient: &Tensor,
    row: usize,
) -> Result<Tensor, TensorError> {
    let (ys, gs) = (y.elements::<T>("log_softmax")?, gradient.elements::<T>("log_softmax")?);
    make::<T>(y.shape(), |out| {
        fill(out, row, &LogSoftmaxGradientKernel { ys, gs, row, element: PhantomData });
        Ok(())
    })
}

/// Rows of a table, chosen by index.
pub(crate) fn embedding<T: Float>(
    table: &Tensor,
    indices: &[i64],
    shape: &Shape,
) -> Result<Tensor, TensorError> {
    let rows = table.elements::<T>("embedding")?;
    let width = table.shape()[1];
    check_indices("embedding", indices, table.shape()[0])?;
    make::<T>(shape, |out| {
        if width > 0 {
            pieces(out, width, |start, piece| {
                for (out, &index) in piece.chunks_exact_mut(width).zip(&indices[start / width..]) {
                    out.copy_from_slice(&rows[index as usize * width..][..width]);
                }
            });
        }
        Ok(())
    })
}

/// The gradient of an embedding table: rows summed in the order of positions.
pub(crate) fn embedding_gradient<T: Float>(
    gradient: &Tensor,
    indices: &[i64],
    table: &Shape,
) -> Result<Tensor, TensorError> {
    let gs = gradient.elements::<T>("embedding")?;
    let width = table[1];
    let mut sums = vec![T::Wide::zero(); table.volume()];
    if width > 0 {
        for (g, &index) in gs.chunks_exact(width).zip(indices) {
            let row = &mut sums[index as usize * width..][..width];
            row.iter_mut().zip(g).for_each(|(sum, g)| *sum += g.widen());
        }
    }
    make::<T>(table, |out| {
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::narrow(sum));
        Ok(())
    })
}

pub(crate) fn check_indices(op: &'static str, indices: &[i64], rows: usize) -> Result<(), TensorError> {
    let outside = |&index: &i64| usize::try_from(index).map_or(true, |index| index >= rows);
    match indices.iter().position(outside) {
        None => Ok(()),
        Some(position) => Err(TensorError::Index { op, index: indices[position], position, rows }),
    }
}

pub(super) fn count<W: Wide>(count: usize) -> W {
    W::from_usize(count).unwrap_or_else(W::one)
}

/// `-log softmax(x)[target]` of one row.
struct RowLoss<'a, T> {
    x: &'a [T],
    target: usize,
}

impl<T: Float> WithSimd for RowLoss<'_, T> {
    type Output = T::Wide;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _width: S) -> T::Wide {
        let (most, sum) = spread(self.x);
        most + sum.ln() - self.x[self.target].widen()
    }
}

/// The mean of `-log softmax(logits)[target]` over the targets that count.
pub(crate) fn cross_entropy<T: Float>(
    logits: &Tensor,
    targets: &[Option<usize>],
) -> Result<Tensor, TensorError> {
    let values = logits.elements::<T>("cross_entropy")?;
    let row = logits.shape()[1];
    let losses: Vec<T::Wide> = values
        .par_chunks_exact(row.max(1))
        .zip(targets)
        .map(|(x, target)| match *target {
            None => T::Wide::zero(),
            Some(target) => dispatch(RowLoss { x, target }),
        })
        .collect();
    let counted = targets.iter().flatten().count();
    let total: T::Wide = losses.into_iter().sum();
    make::<T>(&Shape::default(), |out| {
        out[0] = T::narrow(total / count(counted));
        Ok(())
    })
}

kernel! {
    CrossEntropyGradientKernel<T: Float> { values: &'k [T], targets: &'k [Option<usize>], share: T::Wide, row: usize }
    |start, piece| {
        let rows = values[start..].chunks_exact(row).zip(&targets[start / row..]);
        for (out, (x, target)) in piece.chunks_exact_mut(row).zip(rows) {
            let Some(target) = *target else {
                out.fill(T::narrow(T::Wide::zero()));
                continue;
            };
            let most = lanes::largest(x);
            if T::COMPUTES_IN_ITSELF {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = T::narrow((x.widen() - most).exponential());
                }
                let scale = share / lanes::sum(out, |x| x);
                for out in out.iter_mut() {
                    *out = T::narrow(out.widen() * scale);
                }
                out[target] = T::narrow(out[target].widen() - share);
            } else {
                let scale = share / lanes::sum(x, |x| (x - most).exponential());
                for (out, x) in out.iter_mut().zip(x) {
                    *out = T::narrow((x.widen() - most).exponential() * scale);
                }
                out[target] = T::narrow((x[target].widen() - most).exponential() * scale - share);
            }
        }
    }
}

/// `(softmax(logits) - one_hot(target)) · g / n`, without a second copy of the
/// logits.
pub(crate) fn cross_entropy_gradient<T: Float>(
    logits: &Tensor,
    targets: &[Option<usize>],
    gradient: &Tensor,
) -> Result<Tensor, TensorError> {
    let values = logits.elements::<T>("cross_entropy")?;
    let row = logits.shape()[1];
    let counted = targets.iter().flatten().count();
    let share = gradient.elements::<T>("cross_entropy")?[0].widen() / count(counted);
    make::<T>(logits.shape(), |out| {
        fill(out, row, &CrossEntropyGradientKernel { values, targets, share, row, element: PhantomData });
        Ok(())
    })
}
