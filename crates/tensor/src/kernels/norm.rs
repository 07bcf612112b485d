//! Norms of rows, in one pass over each.

use num_traits::{Float as _, FromPrimitive as _, One as _, Zero as _};
use rayon::prelude::*;

use super::rows::count;
use super::{lanes, make};
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::pieces;
use crate::tensor::Tensor;

/// A tensor like `like` whose columns are sums over rows, in row order whatever
/// thread has the column.
fn column_sums<T: Float>(
    like: &Tensor,
    rows: usize,
    term: impl Fn(usize, usize) -> T::Wide + Sync,
) -> Result<Tensor, TensorError> {
    make::<T>(like.shape(), |out| {
        out.par_iter_mut().enumerate().with_min_len(64).for_each(|(column, out)| {
            *out = T::narrow((0..rows).map(|row| term(row, column)).sum());
        });
        Ok(())
    })
}

/// `1 / sqrt(mean(x²) + eps)` of a row.
fn inverse_norm<T: Float>(row: &[T], eps: f64) -> T::Wide {
    let squares = lanes::sum(row, |x| x * x);
    let eps = T::Wide::from_f64(eps).unwrap_or_else(T::Wide::zero);
    T::Wide::one() / (squares / count(row.len()) + eps).sqrt()
}

/// `x / sqrt(mean(x²) + eps) · weight`, row by row.
pub(crate) fn rms_norm<T: Float>(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor, TensorError> {
    let (values, weights) = (x.elements::<T>("rms_norm")?, weight.elements::<T>("rms_norm")?);
    let row = weights.len();
    make::<T>(x.shape(), |out| {
        pieces(out, row, |start, piece| {
            for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
                let scale = inverse_norm(x, eps);
                for ((out, x), w) in out.iter_mut().zip(x).zip(weights) {
                    *out = T::narrow(x.widen() * scale * w.widen());
                }
            }
        });
        Ok(())
    })
}

/// The gradients of [`rms_norm`] with respect to `x` and the weight.
pub(crate) fn rms_norm_gradient<T: Float>(
    x: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor), TensorError> {
    let (values, weights) = (x.elements::<T>("rms_norm")?, weight.elements::<T>("rms_norm")?);
    let gs = gradient.elements::<T>("rms_norm")?;
    let row = weights.len();
    let of_x = make::<T>(x.shape(), |out| {
        pieces(out, row, |start, piece| {
            let rows = values[start..].chunks_exact(row).zip(gs[start..].chunks_exact(row));
            for (out, (x, g)) in piece.chunks_exact_mut(row).zip(rows) {
                let scale = inverse_norm(x, eps);
                let terms = x.iter().zip(g).zip(weights);
                let dot: T::Wide = terms.map(|((x, g), w)| x.widen() * g.widen() * w.widen()).sum();
                let pull = dot * scale * scale * scale / count(row);
                for (((out, x), g), w) in out.iter_mut().zip(x).zip(g).zip(weights) {
                    *out = T::narrow(g.widen() * w.widen() * scale - x.widen() * pull);
                }
            }
        });
        Ok(())
    })?;
    let scales: Vec<T::Wide> = values.chunks_exact(row.max(1)).map(|x| inverse_norm(x, eps)).collect();
    let of_weight = column_sums::<T>(weight, scales.len(), |r, column| {
        gs[r * row + column].widen() * values[r * row + column].widen() * scales[r]
    })?;
    Ok((of_x, of_weight))
}

/// The mean of a row and `1 / sqrt(variance + eps)`.
fn moments<T: Float>(row: &[T], eps: f64) -> (T::Wide, T::Wide) {
    let mean = lanes::sum(row, |x| x) / count(row.len());
    let squares = lanes::sum(row, |x| (x - mean) * (x - mean));
    let eps = T::Wide::from_f64(eps).unwrap_or_else(T::Wide::zero);
    (mean, T::Wide::one() / (squares / count(row.len()) + eps).sqrt())
}

/// `(x - mean) / sqrt(variance + eps) · weight + bias`, row by row.
pub(crate) fn layer_norm<T: Float>(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<Tensor, TensorError> {
    let (values, weights) = (x.elements::<T>("layer_norm")?, weight.elements::<T>("layer_norm")?);
    let biases = bias.elements::<T>("layer_norm")?;
    let row = weights.len();
    make::<T>(x.shape(), |out| {
        pieces(out, row, |start, piece| {
            for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
                let (mean, scale) = moments(x, eps);
                for (((out, x), w), b) in out.iter_mut().zip(x).zip(weights).zip(biases) {
                    *out = T::narrow((x.widen() - mean) * scale * w.widen() + b.widen());
                }
            }
        });
        Ok(())
    })
}

/// The gradients of [`layer_norm`] with respect to `x`, weight and bias.
pub(crate) fn layer_norm_gradient<T: Float>(
    x: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
    eps: f64,
) -> Result<[Tensor; 3], TensorError> {
    let (values, weights) = (x.elements::<T>("layer_norm")?, weight.elements::<T>("layer_norm")?);
    let gs = gradient.elements::<T>("layer_norm")?;
    let row = weights.len();
    let of_x = make::<T>(x.shape(), |out| {
        pieces(out, row, |start, piece| {
            let rows = values[start..].chunks_exact(row).zip(gs[start..].chunks_exact(row));
            for (out, (x, g)) in piece.chunks_exact_mut(row).zip(rows) {
                let (mean, scale) = moments(x, eps);
                let (mut sum, mut dot) = (T::Wide::zero(), T::Wide::zero());
                for ((x, g), w) in x.iter().zip(g).zip(weights) {
                    let term = g.widen() * w.widen();
                    sum += term;
                    dot += term * (x.widen() - mean) * scale;
                }
                let (sum, dot) = (sum / count(row), dot / count(row));
                for (((out, x), g), w) in out.iter_mut().zip(x).zip(g).zip(weights) {
                    let normed = (x.widen() - mean) * scale;
                    *out = T::narrow((g.widen() * w.widen() - sum - normed * dot) * scale);
                }
            }
        });
        Ok(())
    })?;
    let moments: Vec<_> = values.chunks_exact(row.max(1)).map(|x| moments(x, eps)).collect();
    let of_weight = column_sums::<T>(weight, moments.len(), |r, column| {
        let (mean, scale) = moments[r];
        gs[r * row + column].widen() * (values[r * row + column].widen() - mean) * scale
    })?;
    let of_bias = column_sums::<T>(weight, moments.len(), |r, column| gs[r * row + column].widen())?;
    Ok([of_x, of_weight, of_bias])
}
