//! Cutting work into pieces that do not depend on the number of threads.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::vectors::dispatch;

/// Elements in a piece: enough to be worth handing to a thread, few enough for
/// the cache.
pub(crate) const PIECE: usize = 16 << 10;

/// Calls `work` with each piece of `out` and the index of its first element.
/// Pieces are `unit` elements or a multiple, so that rows stay whole.
pub(crate) fn pieces<T: Send>(out: &mut [T], unit: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let unit = unit.max(1);
    let size = (PIECE / unit).max(1) * unit;
    if out.len() <= size {
        if !out.is_empty() {
            work(0, out);
        }
        return;
    }
    out.par_chunks_mut(size).enumerate().for_each(|(number, piece)| work(number * size, piece));
}

/// Arithmetic on one piece of a result, compiled for every vector width and
/// run with the widest that this CPU has. The operations and their order are
/// the same for all; only their number per instruction differs.
///
/// `run` is always inlined and takes the width as a type, so that closures in
/// it are compiled once for each width too: code that is merely called from
/// vector code is not vector code. The macro [`kernel`] writes such types.
pub(crate) trait Kernel<T>: Sync {
    /// Fills `piece`, whose first element is the `start`-th of the result.
    fn run<S: Simd>(&self, width: S, start: usize, piece: &mut [T]);
}

/// Runs a kernel over all pieces of `out`.
pub(crate) fn fill<T: Send>(out: &mut [T], unit: usize, kernel: &impl Kernel<T>) {
    pieces(out, unit, |start, piece| dispatch(OnePiece { kernel, start, piece }));
}

struct OnePiece<'a, T, K> {
    kernel: &'a K,
    start: usize,
    piece: &'a mut [T],
}

impl<T, K: Kernel<T>> WithSimd for OnePiece<'_, T, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, width: S) {
        self.kernel.run(width, self.start, self.piece);
    }
}

/// Declares a [`Kernel`]: its fields, then what it does with a piece.
macro_rules! kernel {
    (
        $(#[$doc:meta])*
        $name:ident<$T:ident: $bound:path> { $($field:ident: $type:ty),* $(,)? }
        |$start:ident, $piece:ident| $body:block
    ) => {
        $(#[$doc])*
        struct $name<'k, $T: $bound> {
            $($field: $type,)*
            element: std::marker::PhantomData<&'k $T>,
        }

        impl<$T: $bound> $crate::parallel::Kernel<$T> for $name<'_, $T> {
            #[inline(always)]
            fn run<S: pulp::Simd>(&self, _width: S, $start: usize, $piece: &mut [$T]) {
                let Self { $($field,)* .. } = *self;
                $body
            }
        }
    };
}

pub(crate) use kernel;
