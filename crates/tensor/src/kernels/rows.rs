//! Fused work on whole rows: softmax, cross-entropy, embedding.
//!
//! Each row is read while it is in the cache and computed by itself, so its
//! result does not depend on the rows beside it.

use num_traits::{Float as _, One as _, Zero as _};
use rayon::prelude::*;
use shardloom_layout::Shape;

use super::make;
use crate::element::{Float, Wide};
use crate::error::TensorError;
use crate::parallel::pieces;
use crate::tensor::Tensor;

/// The largest value of a row and the sum of `exp(x - largest)`.
fn spread<T: Float>(row: &[T]) -> (T::Wide, T::Wide) {
    let most =
        row.iter().fold(T::Wide::neg_infinity(), |most, x| if x.widen() > most { x.widen() } else { most });
    let sum = row.iter().map(|x| (x.widen() - most).exp()).sum();
    (most, sum)
}

/// Softmax of every row.
pub(crate) fn softmax<T: Float>(x: &Tensor, row: usize) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("softmax")?;
    make::<T>(x.shape(), |out| {
        pieces(out, row, |start, piece| {
            for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
                let (most, sum) = spread(x);
                let scale = T::Wide::one() / sum;
                out.iter_mut().zip(x).for_each(|(out, x)| *out = T::narrow((x.widen() - most).exp() * scale));
            }
        });
        Ok(())
    })
}

/// Log-softmax of every row.
pub(crate) fn log_softmax<T: Float>(x: &Tensor, row: usize) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("log_softmax")?;
    make::<T>(x.shape(), |out| {
        pieces(out, row, |start, piece| {
            for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
                let (most, sum) = spread(x);
                let shift = most + sum.ln();
                out.iter_mut().zip(x).for_each(|(out, x)| *out = T::narrow(x.widen() - shift));
            }
        });
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
        pieces(out, row, |start, piece| {
            let rows = ys[start..].chunks_exact(row).zip(gs[start..].chunks_exact(row));
            for (out, (y, g)) in piece.chunks_exact_mut(row).zip(rows) {
                let dot: T::Wide = y.iter().zip(g).map(|(y, g)| y.widen() * g.widen()).sum();
                for ((out, y), g) in out.iter_mut().zip(y).zip(g) {
                    *out = T::narrow(y.widen() * (g.widen() - dot));
                }
            }
        });
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
        pieces(out, row, |start, piece| {
            let rows = ys[start..].chunks_exact(row).zip(gs[start..].chunks_exact(row));
            for (out, (y, g)) in piece.chunks_exact_mut(row).zip(rows) {
                let sum: T::Wide = g.iter().map(|g| g.widen()).sum();
                for ((out, y), g) in out.iter_mut().zip(y).zip(g) {
                    *out = T::narrow(g.widen() - y.widen().exp() * sum);
                }
            }
        });
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
            Some(target) => {
                let (most, sum) = spread(x);
                most + sum.ln() - x[target].widen()
            }
        })
        .collect();
    let counted = targets.iter().flatten().count();
    let total: T::Wide = losses.into_iter().sum();
    make::<T>(&Shape::default(), |out| {
        out[0] = T::narrow(total / count(counted));
        Ok(())
    })
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
        pieces(out, row, |start, piece| {
            let rows = values[start..].chunks_exact(row).zip(&targets[start / row..]);
            for (out, (x, target)) in piece.chunks_exact_mut(row).zip(rows) {
                let Some(target) = *target else {
                    out.fill(T::narrow(T::Wide::zero()));
                    continue;
                };
                let (most, sum) = spread(x);
                let scale = share / sum;
                out.iter_mut().zip(x).for_each(|(out, x)| *out = T::narrow((x.widen() - most).exp() * scale));
                out[target] = T::narrow((x[target].widen() - most).exp() * scale - share);
            }
        });
        Ok(())
    })
}
