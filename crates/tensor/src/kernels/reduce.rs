//! Reductions of rows, in an order that does not depend on threads.

use num_traits::{Float as _, One as _, Zero as _};
use pulp::{Simd, WithSimd};
use weightloom_layout::Shape;

use super::softmax::spread;
use super::{lanes, make};
use crate::backend::meta::{output, output_like, volume};
use crate::backend::{Cpu, Meta};
use crate::element::Float;
use crate::element::with_float;
use crate::error::Result;
use crate::parallel::{PIECE, map, rows, share, whole_rows};
use crate::tensor::Tensor;
use crate::vectors::dispatch;

/// Reduction kernels.
pub(crate) trait ReduceKernels {
    /// Reduces rows of this length.
    fn reduce(&self, op: Reduction, x: &Tensor, row: usize, shape: &Shape) -> Result<Tensor>;

    /// The gradient of a product along rows.
    fn product_gradient(&self, x: &Tensor, gradient: &Tensor, row: usize) -> Result<Tensor>;
}

impl ReduceKernels for Cpu {
    fn reduce(&self, op: Reduction, x: &Tensor, row: usize, shape: &Shape) -> Result<Tensor> {
        with_float!(op.name(), x.dtype(), T => reduce::<T>(op, x, row, shape))
    }

    fn product_gradient(&self, x: &Tensor, gradient: &Tensor, row: usize) -> Result<Tensor> {
        with_float!("prod", x.dtype(), T => product_gradient::<T>(x, gradient, row))
    }
}

impl ReduceKernels for Meta {
    fn reduce(&self, op: Reduction, x: &Tensor, _: usize, shape: &Shape) -> Result<Tensor> {
        output(op.name(), volume(x.shape()), &[x], shape, x.dtype())
    }

    fn product_gradient(&self, x: &Tensor, gradient: &Tensor, _: usize) -> Result<Tensor> {
        output_like("prod", 3, &[x, gradient])
    }
}

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Max,
    Min,
    Product,
    /// The Euclidean norm.
    Norm,
    /// The logarithm of the sum of exponentials.
    LogSumExp,
}

impl Reduction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
            Self::Product => "prod",
            Self::Norm => "norm",
            Self::LogSumExp => "logsumexp",
        }
    }
}

/// Adds up pieces of a row of any length, then the pieces in order.
struct RowSum<'a, T> {
    row: &'a [T],
}

impl<T: Float> WithSimd for RowSum<'_, T> {
    type Output = T::Wide;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> T::Wide {
        self.row
            .chunks(PIECE)
            .map(|piece| lanes::sum(piece, |x| x))
            .fold(T::Wide::zero(), |sum, piece| sum + piece)
    }
}

struct Row<'a, T> {
    op: Reduction,
    row: &'a [T],
}

impl<T: Float> WithSimd for Row<'_, T> {
    type Output = T::Wide;

    #[inline(always)]
    fn with_simd<S: Simd>(self, width: S) -> T::Wide {
        let row = self.row;
        let is_nan = |x: &T| x.widen().is_nan();
        match self.op {
            Reduction::Sum => RowSum { row }.with_simd(width),
            // NaN propagates.
            Reduction::Max if row.iter().any(is_nan) => T::Wide::nan(),
            Reduction::Min if row.iter().any(is_nan) => T::Wide::nan(),
            Reduction::Max => lanes::largest(row),
            Reduction::Min => row.iter().fold(T::Wide::infinity(), |least, x| least.min(x.widen())),
            Reduction::Product => row.iter().fold(T::Wide::one(), |product, x| product * x.widen()),
            Reduction::Norm => {
                let squares = row.chunks(PIECE).map(|piece| lanes::sum(piece, |x| x * x));
                squares.fold(T::Wide::zero(), |sum, piece| sum + piece).sqrt()
            }
            Reduction::LogSumExp => {
                let (most, sum) = spread::<S, T>(row);
                // The result of a row of -∞, or with a +∞, is that infinity.
                if most.is_infinite() { most } else { most + sum.ln() }
            }
        }
    }
}

/// Reduces the rows of a contiguous tensor.
pub(crate) fn reduce<T: Float>(op: Reduction, x: &Tensor, row: usize, shape: &Shape) -> Result<Tensor> {
    let values = x.elements::<T>(op.name())?;
    make::<T>(shape, |out| {
        if row == 0 {
            let nothing: &[T] = &[];
            out.fill(T::narrow(dispatch(Row { op, row: nothing })));
        } else if out.len() == 1 && op == Reduction::Sum {
            // A single row: pieces in parallel, then their sum in order.
            let pieces: Vec<T::Wide> = map(values.chunks(PIECE), |row| dispatch(RowSum { row }));
            out[0] = T::narrow(pieces.into_iter().fold(T::Wide::zero(), |sum, piece| sum + piece));
        } else {
            let size = whole_rows(row);
            share(out.chunks_mut(size / row).zip(values.chunks(size)), |(out, values)| {
                for (out, row) in out.iter_mut().zip(values.chunks_exact(row)) {
                    *out = T::narrow(dispatch(Row { op, row }));
                }
            });
        }
        Ok(())
    })
}

/// The gradient of a product along rows: for each element the product of the
/// others, which is also right for zeros.
pub(crate) fn product_gradient<T: Float>(x: &Tensor, gradient: &Tensor, row: usize) -> Result<Tensor> {
    let (values, gs) = (x.elements::<T>("prod")?, gradient.elements::<T>("prod")?);
    make::<T>(x.shape(), |out| {
        let row = row.max(1);
        rows(out, row, |number, out| {
            let (x, g) = (&values[number * row..][..row], gs[number]);
            let mut after = vec![T::Wide::one(); x.len() + 1];
            for place in (0..x.len()).rev() {
                after[place] = after[place + 1] * x[place].widen();
            }
            let mut before = g.widen();
            for (place, (out, x)) in out.iter_mut().zip(x).enumerate() {
                *out = T::narrow(before * after[place + 1]);
                before = before * x.widen();
            }
        });
        Ok(())
    })
}
