//! Sums along rows, in an order that does not depend on threads.

use num_traits::Zero as _;
use rayon::prelude::*;
use shardloom_layout::Shape;

use super::make;
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::PIECE;
use crate::tensor::Tensor;

/// Partial sums that run side by side, so that additions do not wait for one
/// another. Which element goes to which is fixed by its place.
const LANES: usize = 16;

fn lane_sum<T: Float>(values: &[T]) -> T::Wide {
    let mut lanes = [T::Wide::zero(); LANES];
    let mut blocks = values.chunks_exact(LANES);
    for block in &mut blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane += value.widen();
        }
    }
    for (lane, value) in lanes.iter_mut().zip(blocks.remainder()) {
        *lane += value.widen();
    }
    lanes.into_iter().fold(T::Wide::zero(), |sum, lane| sum + lane)
}

/// The sum of a row of any length: pieces first, then the pieces in order.
fn row_sum<T: Float>(values: &[T]) -> T::Wide {
    values.chunks(PIECE).map(lane_sum).fold(T::Wide::zero(), |sum, piece| sum + piece)
}

/// The sums of the rows of a contiguous tensor whose rows have this length.
pub(crate) fn row_sums<T: Float>(x: &Tensor, row: usize, shape: &Shape) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("sum")?;
    make::<T>(shape, |out| {
        if row == 0 {
            out.fill(T::narrow(T::Wide::zero()));
        } else if out.len() == 1 {
            // One row for all threads: pieces side by side, then in order.
            let pieces: Vec<T::Wide> = values.par_chunks(PIECE).map(lane_sum).collect();
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
