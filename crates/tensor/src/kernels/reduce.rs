//! Sums along rows, in an order that does not depend on threads.

use num_traits::Zero as _;
use rayon::prelude::*;
use shardloom_layout::Shape;

use super::{lanes, make};
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::PIECE;
use crate::tensor::Tensor;

/// The sum of a row of any length: pieces first, then the pieces in order.
fn row_sum<T: Float>(values: &[T]) -> T::Wide {
    values.chunks(PIECE).map(|piece| lanes::sum(piece, |x| x)).fold(T::Wide::zero(), |sum, piece| sum + piece)
}

/// The sums of the rows of a contiguous tensor whose rows have this length.
pub(crate) fn row_sums<T: Float>(x: &Tensor, row: usize, shape: &Shape) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("sum")?;
    make::<T>(shape, |out| {
        if row == 0 {
            out.fill(T::narrow(T::Wide::zero()));
        } else if out.len() == 1 {
            // One row for all threads: pieces side by side, then in order.
            let pieces: Vec<T::Wide> =
                values.par_chunks(PIECE).map(|piece| lanes::sum(piece, |x| x)).collect();
            out[0] = T::narrow(pieces.into_iter().fold(T::Wide::zero(), |sum, piece| sum + piece));
        } else {
            out.par_iter_mut()
                .zip(values.par_chunks_exact(row))
                .with_min_len((PIECE / row).max(1))
                .for_each(|(out, row)| *out = T::narrow(row_sum(row)));
        }
        Ok(())
    })
}
