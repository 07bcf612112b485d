//! RMS norm and layer norm of rows.
//!
//! The backward pass takes a fixed number of rows at a time, so that sums have one
//! order: it overwrites the gradients of results by those of rows, and adds up
//! each row's share of the gradients of weights.

use std::marker::PhantomData;

use num_traits::{Float as _, FromPrimitive as _, One as _, Zero as _};
use pulp::{Simd, WithSimd};

use super::softmax::count;
use super::{lanes, make, rewrite};
use crate::backend::meta::{output, output_in_place, output_like};
use crate::backend::{Cpu, Meta};
use crate::element::Float;
use crate::element::with_float;
use crate::error::Result;
use crate::parallel::{fill, kernel, share};
use crate::tensor::Tensor;
use crate::vectors::dispatch;

/// Normalisation kernels.
pub(crate) trait NormKernels {
    /// `x / rms(x) · weight` along the last dim.
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor>;

    /// The gradients of `x` and weight.
    fn rms_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 2]>;

    /// `(x - mean) / deviation · weight + bias` along the last dim.
    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor>;

    /// The gradients of `x`, weight and bias.
    fn layer_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 3]>;
}

impl NormKernels for Cpu {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        with_float!("rms_norm", x.dtype(), T => rms_norm::<T>(x, weight, eps))
    }

    fn rms_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 2]> {
        with_float!("rms_norm", x.dtype(), T => rms_norm_gradient::<T>(x, weight, gradient, eps))
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
        with_float!("layer_norm", x.dtype(), T => layer_norm::<T>(x, weight, bias, eps))
    }

    fn layer_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 3]> {
        with_float!("layer_norm", x.dtype(), T => layer_norm_gradient::<T>(x, weight, gradient, eps))
    }
}

impl NormKernels for Meta {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, _: f64) -> Result<Tensor> {
        output_like("rms_norm", 4, &[x, weight])
    }

    fn rms_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        _: f64,
    ) -> Result<[Tensor; 2]> {
        let of_x = output_in_place("rms_norm", 11, &[x, weight], gradient)?;
        Ok([of_x, output("rms_norm", 0, &[], weight.shape(), weight.dtype())?])
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, _: f64) -> Result<Tensor> {
        output_like("layer_norm", 7, &[x, weight, bias])
    }

    fn layer_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        _: f64,
    ) -> Result<[Tensor; 3]> {
        let of_x = output_in_place("layer_norm", 16, &[x, weight], gradient)?;
        let of_weight = || output("layer_norm", 0, &[], weight.shape(), weight.dtype());
        Ok([of_x, of_weight()?, of_weight()?])
    }
}

/// Rows whose shares of the gradient of a weight are summed together.
const ROWS: usize = 32;

/// `1 / sqrt(mean(x²) + eps)` of a row.
#[inline(always)]
fn inverse_norm<T: Float>(row: &[T], eps: T::Wide) -> T::Wide {
    let squares = lanes::sum(row, |x| x * x);
    T::Wide::one() / (squares / count(row.len()) + eps).sqrt()
}

/// The mean of a row and `1 / sqrt(variance + eps)`.
#[inline(always)]
fn moments<T: Float>(row: &[T], eps: T::Wide) -> (T::Wide, T::Wide) {
    let mean = lanes::sum(row, |x| x) / count(row.len());
    let squares = lanes::sum(row, |x| (x - mean) * (x - mean));
    (mean, T::Wide::one() / (squares / count(row.len()) + eps).sqrt())
}

fn wide<T: Float>(eps: f64) -> T::Wide {
    T::Wide::from_f64(eps).unwrap_or_else(T::Wide::zero)
}

kernel! {
    RmsNormKernel<T: Float> { values: &'k [T], weights: &'k [T], eps: T::Wide }
    |start, piece| {
        let row = weights.len();
        for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
            let scale = inverse_norm(x, eps);
            for ((out, x), w) in out.iter_mut().zip(x).zip(weights) {
                *out = T::narrow(x.widen() * scale * w.widen());
            }
        }
    }
}

/// `x / sqrt(mean(x²) + eps) · weight`, row by row.
pub(crate) fn rms_norm<T: Float>(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let (values, weights) = (x.elements::<T>("rms_norm")?, weight.elements::<T>("rms_norm")?);
    make::<T>(x.shape(), |out| {
        fill(
            out,
            weights.len(),
            &RmsNormKernel { values, weights, eps: wide::<T>(eps), element: PhantomData },
        );
        Ok(())
    })
}

kernel! {
    LayerNormKernel<T: Float> { values: &'k [T], weights: &'k [T], biases: &'k [T], eps: T::Wide }
    |start, piece| {
        let row = weights.len();
        for (out, x) in piece.chunks_exact_mut(row).zip(values[start..].chunks_exact(row)) {
            let (mean, scale) = moments(x, eps);
            for (((out, x), w), b) in out.iter_mut().zip(x).zip(weights).zip(biases) {
                *out = T::narrow((x.widen() - mean) * scale * w.widen() + b.widen());
            }
        }
    }
}

/// `(x - mean) / sqrt(variance + eps) · weight + bias`, row by row.
pub(crate) fn layer_norm<T: Float>(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    let (values, weights) = (x.elements::<T>("layer_norm")?, weight.elements::<T>("layer_norm")?);
    let (biases, eps) = (bias.elements::<T>("layer_norm")?, wide::<T>(eps));
    make::<T>(x.shape(), |out| {
        fill(out, weights.len(), &LayerNormKernel { values, weights, biases, eps, element: PhantomData });
        Ok(())
    })
}

/// Some rows of a backward pass.
struct Chunk<'a, T: Float> {
    x: &'a [T],
    weights: &'a [T],
    eps: T::Wide,
    /// The output gradient, overwritten by the gradient of `x`.
    gradient: &'a mut [T],
    /// Shares of the gradients of weights, then of biases if there are any.
    shares: &'a mut [T::Wide],
}

struct RmsNormChunk<'a, T: Float>(Chunk<'a, T>);

impl<T: Float> WithSimd for RmsNormChunk<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Chunk { x, weights, eps, gradient, shares } = self.0;
        let row = weights.len();
        for (g, x) in gradient.chunks_exact_mut(row).zip(x.chunks_exact(row)) {
            let scale = inverse_norm(x, eps);
            let dot = lanes::sum3(x, g, weights, |x, g, w| x * g * w);
            let pull = dot * scale * scale * scale / count(row);
            for (((g, x), w), share) in g.iter_mut().zip(x).zip(weights).zip(shares.iter_mut()) {
                let (wide_g, wide_x) = (g.widen(), x.widen());
                *share += wide_g * wide_x * scale;
                *g = T::narrow(wide_g * w.widen() * scale - wide_x * pull);
            }
        }
    }
}

struct LayerNormChunk<'a, T: Float>(Chunk<'a, T>);

impl<T: Float> WithSimd for LayerNormChunk<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Chunk { x, weights, eps, gradient, shares } = self.0;
        let row = weights.len();
        let (of_weights, of_biases) = shares.split_at_mut(row);
        for (g, x) in gradient.chunks_exact_mut(row).zip(x.chunks_exact(row)) {
            let (mean, scale) = moments(x, eps);
            let sum = lanes::sum2(g, weights, |g, w| g * w) / count(row);
            let dot = lanes::sum3(x, g, weights, |x, g, w| g * w * (x - mean) * scale) / count(row);
            let shares = of_weights.iter_mut().zip(of_biases.iter_mut());
            for (((g, x), w), (of_weight, of_bias)) in g.iter_mut().zip(x).zip(weights).zip(shares) {
                let (wide, normed) = (g.widen(), (x.widen() - mean) * scale);
                *of_weight += wide * normed;
                *of_bias += wide;
                *g = T::narrow((wide * w.widen() - sum - normed * dot) * scale);
            }
        }
    }
}

/// Runs `work` over all chunks; returns the gradient of `x` and the sums of
/// shares, of which there are `per_weight` for each weight.
fn backward<T: Float>(
    op: &'static str,
    [x, weight]: [&Tensor; 2],
    gradient: Tensor,
    eps: f64,
    per_weight: usize,
    work: impl Fn(Chunk<'_, T>) + Sync,
) -> Result<(Tensor, Vec<T::Wide>)> {
    let (values, weights) = (x.elements::<T>(op)?, weight.elements::<T>(op)?);
    let row = weights.len();
    let (size, width) = ((ROWS * row).max(1), (per_weight * row).max(1));
    let mut shares = vec![T::Wide::zero(); values.len().div_ceil(size) * width];
    let of_x = rewrite::<T>(gradient, op, |gradient| {
        let chunks = gradient.chunks_mut(size).zip(values.chunks(size)).zip(shares.chunks_mut(width));
        share(chunks, |((gradient, x), shares)| {
            work(Chunk { x, weights, eps: wide::<T>(eps), gradient, shares });
        });
        Ok(())
    })?;
    let mut sums = vec![T::Wide::zero(); per_weight * row];
    for shares in shares.chunks_exact(width) {
        sums.iter_mut().zip(shares).for_each(|(sum, &share)| *sum += share);
    }
    Ok((of_x, sums))
}

fn narrowed<T: Float>(like: &Tensor, sums: &[T::Wide]) -> Result<Tensor> {
    make::<T>(like.shape(), |out| {
        out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = T::narrow(sum));
        Ok(())
    })
}

/// The gradients of [`rms_norm`] with respect to `x` and the weight.
pub(crate) fn rms_norm_gradient<T: Float>(
    x: &Tensor,
    weight: &Tensor,
    gradient: Tensor,
    eps: f64,
) -> Result<[Tensor; 2]> {
    let run = |chunk: Chunk<'_, T>| dispatch(RmsNormChunk(chunk));
    let (of_x, sums) = backward::<T>("rms_norm", [x, weight], gradient, eps, 1, run)?;
    Ok([of_x, narrowed::<T>(weight, &sums)?])
}

/// The gradients of [`layer_norm`] with respect to `x`, weight and bias.
pub(crate) fn layer_norm_gradient<T: Float>(
    x: &Tensor,
    weight: &Tensor,
    gradient: Tensor,
    eps: f64,
) -> Result<[Tensor; 3]> {
    let run = |chunk: Chunk<'_, T>| dispatch(LayerNormChunk(chunk));
    let (of_x, sums) = backward::<T>("layer_norm", [x, weight], gradient, eps, 2, run)?;
    let (of_weight, of_bias) = sums.split_at(sums.len() / 2);
    Ok([of_x, narrowed::<T>(weight, of_weight)?, narrowed::<T>(weight, of_bias)?])
}
