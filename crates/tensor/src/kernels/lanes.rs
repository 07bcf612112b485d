//! Sums and maxima of rows in SIMD lanes.
//!
//! Adding a row from left to right makes every addition wait for the one before.
//! Partial results do not wait for each other, and a compiler can keep them in
//! vector registers. The lane of an element follows from its position, so that
//! the result is the same on every machine.

use num_traits::{Float as _, Zero as _};

use crate::element::Float;

const LANES: usize = 16;

/// The sum of `f` over a row.
#[inline(always)]
pub(crate) fn sum<T: Float>(row: &[T], f: impl Fn(T::Wide) -> T::Wide) -> T::Wide {
    let mut lanes = [T::Wide::zero(); LANES];
    let mut blocks = row.chunks_exact(LANES);
    for block in &mut blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane += f(x.widen());
        }
    }
    for (lane, x) in lanes.iter_mut().zip(blocks.remainder()) {
        *lane += f(x.widen());
    }
    total(lanes)
}

/// Writes `f` of a row to another of equal length, and returns the sum of what
/// was written.
#[inline(always)]
pub(crate) fn map_sum<T: Float>(row: &[T], out: &mut [T], f: impl Fn(T::Wide) -> T::Wide) -> T::Wide {
    let mut lanes = [T::Wide::zero(); LANES];
    let (mut blocks, mut outs) = (row.chunks_exact(LANES), out.chunks_exact_mut(LANES));
    for (block, out) in (&mut blocks).zip(&mut outs) {
        for ((lane, x), out) in lanes.iter_mut().zip(block).zip(out) {
            let y = f(x.widen());
            *out = T::narrow(y);
            *lane += y;
        }
    }
    for ((lane, x), out) in lanes.iter_mut().zip(blocks.remainder()).zip(outs.into_remainder()) {
        let y = f(x.widen());
        *out = T::narrow(y);
        *lane += y;
    }
    total(lanes)
}

/// The sum of `f` over two rows of equal length.
#[inline(always)]
pub(crate) fn sum2<T: Float>(a: &[T], b: &[T], f: impl Fn(T::Wide, T::Wide) -> T::Wide) -> T::Wide {
    let mut lanes = [T::Wide::zero(); LANES];
    let (mut left, mut right) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in (&mut left).zip(&mut right) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f(a.widen(), b.widen());
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(left.remainder()).zip(right.remainder()) {
        *lane += f(a.widen(), b.widen());
    }
    total(lanes)
}

/// The sum of `f` over three rows of equal length.
#[inline(always)]
pub(crate) fn sum3<T: Float>(
    a: &[T],
    b: &[T],
    c: &[T],
    f: impl Fn(T::Wide, T::Wide, T::Wide) -> T::Wide,
) -> T::Wide {
    let mut lanes = [T::Wide::zero(); LANES];
    let (mut first, mut second, mut third) =
        (a.chunks_exact(LANES), b.chunks_exact(LANES), c.chunks_exact(LANES));
    for ((a, b), c) in (&mut first).zip(&mut second).zip(&mut third) {
        for (((lane, a), b), c) in lanes.iter_mut().zip(a).zip(b).zip(c) {
            *lane += f(a.widen(), b.widen(), c.widen());
        }
    }
    let rest = first.remainder().iter().zip(second.remainder()).zip(third.remainder());
    for (lane, ((a, b), c)) in lanes.iter_mut().zip(rest) {
        *lane += f(a.widen(), b.widen(), c.widen());
    }
    total(lanes)
}

/// The largest value of a row; `-∞` for an empty one.
#[inline(always)]
pub(crate) fn largest<T: Float>(row: &[T]) -> T::Wide {
    let mut lanes = [T::Wide::neg_infinity(); LANES];
    let mut blocks = row.chunks_exact(LANES);
    for block in &mut blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            let x = x.widen();
            *lane = if x > *lane { x } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(blocks.remainder()) {
        let x = x.widen();
        *lane = if x > *lane { x } else { *lane };
    }
    lanes.into_iter().fold(T::Wide::neg_infinity(), |most, lane| if lane > most { lane } else { most })
}

#[inline(always)]
fn total<W: Float<Wide = W> + num_traits::Float>(lanes: [W; LANES]) -> W {
    lanes.into_iter().fold(W::zero(), |sum, lane| sum + lane)
}
