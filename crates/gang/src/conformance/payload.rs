//! Payloads of collectives: how much each rank contributes, and of which dtype.

use std::ops::Range;

use weightloom_layout::{DType, ReduceOp};

use super::values::{Values, contribution, reduced};
use crate::reduce::check_reducible;

/// The contributions of all ranks in one case.
pub(crate) struct Payload {
    pub(crate) dtype: DType,
    /// Elements per rank.
    pub(crate) counts: Vec<usize>,
}

impl Payload {
    /// The payloads for a gang of some size: equal, uneven, only one rank, none,
    /// and more than fits into one block or packet (shared by all ranks, so
    /// that large gangs stay fast).
    pub(super) fn all(dtype: DType, size: usize) -> Vec<Self> {
        let many = 12_500 / size;
        let counts = [
            vec![5; size],
            (0..size).map(|rank| (rank * 3 + 2) % 7).collect(),
            (0..size).map(|rank| if rank + 1 == size { 4 } else { 0 }).collect(),
            vec![0; size],
            (0..size).map(|rank| many + rank % 5 * 601).collect(),
        ];
        counts.map(|counts| Self { dtype, counts }).into()
    }

    /// Elements of all ranks together.
    pub(crate) fn total(&self) -> usize {
        self.counts.iter().sum()
    }

    /// The reductions that the dtype supports.
    pub(crate) fn reductions(&self) -> impl Iterator<Item = ReduceOp> {
        let dtype = self.dtype;
        ReduceOp::ALL.into_iter().filter(move |&op| check_reducible(dtype, op).is_ok())
    }

    /// The first `count` elements that a rank contributes.
    pub(crate) fn contribution(&self, rank: usize, count: usize) -> Values {
        Values::of(self.dtype, (0..count).map(|index| contribution(self.dtype, rank, index)))
    }

    /// The expected reduction of what all ranks contribute.
    pub(crate) fn reduced(&self, op: ReduceOp, size: usize, range: Range<usize>) -> Values {
        Values::of(self.dtype, range.map(|index| reduced(self.dtype, op, size, index)))
    }

    /// A receive buffer.
    pub(crate) fn zeroed(&self, count: usize) -> Values {
        Values::zeroed(self.dtype, count)
    }
}
