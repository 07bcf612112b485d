//! Cross-entropy of rows of logits.
//!
//! A row's loss is `Σ target · (log Σ exp x - x)`, where the target is one
//! class, or with smoothing mostly that class and a little of every class.

use std::marker::PhantomData;

use num_traits::{Float as _, FromPrimitive as _, One as _, Zero as _};
use pulp::{Simd, WithSimd};
use weightloom_layout::{DType, Shape};

use super::softmax::{count, spread};
use super::{lanes, make, rewrite_pieces};
use crate::backend::meta::{output, output_in_place, volume};
use crate::backend::{Cpu, Meta};
use crate::element::{Float, Wide, with_float};
use crate::error::{Result, TensorError};
use crate::meter::counts_for_gpu;
use crate::ops::CrossEntropy;
use crate::parallel::{kernel, map};
use crate::tensor::Tensor;
use crate::vectors::dispatch;

/// Cross-entropy kernels.
pub(crate) trait CrossEntropyKernels {
    /// The mean cross-entropy of rows of logits.
    fn cross_entropy(&self, logits: &Tensor, targets: &Tensor, options: CrossEntropy) -> Result<Tensor>;

    /// Its gradient.
    fn cross_entropy_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        gradient: &Tensor,
        options: CrossEntropy,
    ) -> Result<Tensor>;

    /// A share of the mean cross-entropy of rows, and its gradient. Some row is not
    /// ignored. The gradient has the dtype of the logits; both are computed as if the
    /// logits were wide.
    fn loss_and_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        options: CrossEntropy,
        share: f64,
    ) -> Result<[Tensor; 2]> {
        loss_then_gradient(self, logits, targets, options, share)
    }

    /// The most logits that should exist at a time. Every chunk reads the weight of a
    /// head again and adds to its gradient, so there should be few chunks.
    fn logits_at_once(&self) -> usize {
        LOGITS_ON_CPU
    }
}

const LOGITS_ON_CPU: usize = 1 << 24;

/// A gigabyte of halves: a fraction of what else is in memory then.
pub(crate) const LOGITS_ON_GPU: usize = 1 << 29;

/// The loss from wide logits, and then the gradient.
fn loss_then_gradient(
    kernels: &(impl CrossEntropyKernels + ?Sized),
    logits: Tensor,
    targets: &Tensor,
    options: CrossEntropy,
    share: f64,
) -> Result<[Tensor; 2]> {
    let (dtype, device) = (logits.dtype(), logits.device());
    let wide = wide_dtype(dtype);
    let wide_logits = logits.cast(wide)?;
    // So that the gradient takes the memory of wide logits, which may be these.
    drop(logits);
    let loss = kernels.cross_entropy(&wide_logits, targets, options)?.scale(share)?;
    let share = Tensor::full(share, wide, &[], device)?;
    Ok([loss, kernels.cross_entropy_gradient(wide_logits, targets, &share, options)?.cast(dtype)?])
}

/// The dtype of losses, and of sums over many rows.
pub(crate) fn wide_dtype(dtype: DType) -> DType {
    if dtype.size() < 4 { DType::F32 } else { dtype }
}

impl CrossEntropyKernels for Cpu {
    fn cross_entropy(&self, logits: &Tensor, targets: &Tensor, options: CrossEntropy) -> Result<Tensor> {
        let op = "cross_entropy";
        with_float!(op, logits.dtype(), T => cross_entropy::<T>(logits, targets, options))
    }

    fn cross_entropy_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        gradient: &Tensor,
        options: CrossEntropy,
    ) -> Result<Tensor> {
        with_float!("cross_entropy", logits.dtype(), T => {
            cross_entropy_gradient::<T>(logits, targets, gradient, options)
        })
    }
}

impl CrossEntropyKernels for Meta {
    fn loss_and_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        options: CrossEntropy,
        share: f64,
    ) -> Result<[Tensor; 2]> {
        if !counts_for_gpu() {
            return loss_then_gradient(self, logits, targets, options, share);
        }
        let loss = self.cross_entropy(&logits, targets, options)?.cast(wide_dtype(logits.dtype()))?;
        Ok([loss, output_in_place("cross_entropy", 4, &[targets], logits)?])
    }

    fn logits_at_once(&self) -> usize {
        if counts_for_gpu() { LOGITS_ON_GPU } else { LOGITS_ON_CPU }
    }

    fn cross_entropy(&self, logits: &Tensor, targets: &Tensor, _: CrossEntropy) -> Result<Tensor> {
        let flops = 3 * volume(logits.shape());
        output("cross_entropy", flops, &[logits, targets], &Shape::default(), logits.dtype())
    }

    fn cross_entropy_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        _: &Tensor,
        _: CrossEntropy,
    ) -> Result<Tensor> {
        output_in_place("cross_entropy", 4, &[targets], logits)
    }
}

/// The number of targets that are not ignored. Checks that they are classes.
pub(crate) fn count_targets(targets: &[i64], classes: usize, options: CrossEntropy) -> Result<usize> {
    let mut counted = 0;
    for (position, &index) in targets.iter().enumerate() {
        if Some(index) == options.ignore_index {
            continue;
        }
        if usize::try_from(index).map_or(true, |index| index >= classes) {
            return Err(TensorError::Index { op: "cross_entropy", index, position, rows: classes });
        }
        counted += 1;
    }
    Ok(counted)
}

/// Checked targets.
struct Targets<'a> {
    classes: &'a [i64],
    ignored: Option<i64>,
    counted: usize,
}

impl<'a> Targets<'a> {
    fn new(targets: &'a Tensor, classes: usize, options: CrossEntropy) -> Result<Self> {
        let targets = targets.elements::<i64>("cross_entropy")?;
        let counted = count_targets(targets, classes, options)?;
        Ok(Self { classes: targets, ignored: options.ignore_index, counted })
    }

    /// The divisor of the sum of losses.
    fn divisor<W: Wide>(&self, options: CrossEntropy) -> W {
        let given = options.divisor.map(|divisor| W::from_f64(divisor).unwrap_or_else(W::nan));
        given.unwrap_or_else(|| count(self.counted))
    }

    #[inline(always)]
    fn class(&self, row: usize) -> Option<usize> {
        let class = self.classes[row];
        (Some(class) != self.ignored).then_some(class as usize)
    }
}

/// The loss of one row.
struct RowLoss<'a, T: Float> {
    x: &'a [T],
    class: usize,
    smoothing: T::Wide,
}

impl<T: Float> WithSimd for RowLoss<'_, T> {
    type Output = T::Wide;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> T::Wide {
        let (most, sum) = spread::<S, T>(self.x);
        let log = most + sum.ln();
        let of_class = log - self.x[self.class].widen();
        if self.smoothing == T::Wide::zero() {
            return of_class;
        }
        let mean = lanes::sum(self.x, |x| log - x) / count(self.x.len());
        of_class * (T::Wide::one() - self.smoothing) + mean * self.smoothing
    }
}

/// The mean loss of rows that are not ignored.
pub(crate) fn cross_entropy<T: Float>(
    logits: &Tensor,
    targets: &Tensor,
    options: CrossEntropy,
) -> Result<Tensor> {
    let values = logits.elements::<T>("cross_entropy")?;
    let row = logits.shape()[1];
    let targets = Targets::new(targets, row, options)?;
    let smoothing = T::Wide::from_f64(options.label_smoothing).unwrap_or_else(T::Wide::nan);
    let rows = values.chunks_exact(row.max(1)).enumerate();
    let losses = map(rows, |(number, x)| match targets.class(number) {
        None => T::Wide::zero(),
        Some(class) => dispatch(RowLoss { x, class, smoothing }),
    });
    let total: T::Wide = losses.into_iter().sum();
    make::<T>(&Shape::default(), |out| {
        out[0] = T::narrow(total / targets.divisor(options));
        Ok(())
    })
}

kernel! {
    /// `(softmax(x) - target) · share` in place of logits.
    GradientKernel<T: Float> { targets: &'k Targets<'k>, share: T::Wide, smoothing: T::Wide, row: usize }
    |start, piece| {
        let spread_out = share * smoothing / count(row);
        let of_class = share * (T::Wide::one() - smoothing);
        for (number, x) in piece.chunks_exact_mut(row).enumerate() {
            let Some(class) = targets.class(start / row + number) else {
                x.fill(T::narrow(T::Wide::zero()));
                continue;
            };
            let most = lanes::largest(x);
            let at_class = x[class].widen();
            let scale = if T::COMPUTES_IN_ITSELF {
                // Exponentials are expensive: keep them and scale.
                for x in x.iter_mut() {
                    *x = T::narrow((x.widen() - most).exp_negative::<S>());
                }
                let scale = share / lanes::sum(x, |x| x);
                for x in x.iter_mut() {
                    *x = T::narrow(x.widen() * scale - spread_out);
                }
                scale
            } else {
                let scale = share / lanes::sum(x, |x| (x - most).exp_negative::<S>());
                for x in x.iter_mut() {
                    *x = T::narrow((x.widen() - most).exp_negative::<S>() * scale - spread_out);
                }
                scale
            };
            let whole = (at_class - most).exp_negative::<S>() * scale - spread_out - of_class;
            x[class] = T::narrow(whole);
        }
    }
}

/// The gradient of the mean loss, in the memory of the logits unless that is
/// shared.
pub(crate) fn cross_entropy_gradient<T: Float>(
    logits: Tensor,
    targets: &Tensor,
    gradient: &Tensor,
    options: CrossEntropy,
) -> Result<Tensor> {
    let row = logits.shape()[1];
    let targets = Targets::new(targets, row, options)?;
    let share = gradient.elements::<T>("cross_entropy")?[0].widen() / targets.divisor(options);
    let smoothing = T::Wide::from_f64(options.label_smoothing).unwrap_or_else(T::Wide::nan);
    let kernel = GradientKernel { targets: &targets, share, smoothing, row, element: PhantomData };
    rewrite_pieces::<T>(logits, "cross_entropy", row, &kernel)
}
