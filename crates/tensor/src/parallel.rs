//! Cutting work into pieces that do not depend on the number of threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use num_traits::Zero;
use pulp::{Simd, WithSimd};

use crate::error::TensorError;
use crate::threads::with_helpers;
use crate::vectors::dispatch;

/// Elements in a piece: enough to be worth handing to a thread, few enough for
/// the cache.
pub(crate) const PIECE: usize = 16 << 10;

/// Calls `work` with each piece of `out` and the index of its first element.
/// Pieces are `unit` elements or a multiple, so that rows stay whole.
pub(crate) fn pieces<T: Send>(out: &mut [T], unit: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let size = whole_rows(unit);
    if out.len() <= size {
        if !out.is_empty() {
            work(0, out);
        }
        return;
    }
    share(out.chunks_mut(size).enumerate(), |(number, piece)| work(number * size, piece));
}

/// Calls `work` with each row of `out` and its number, several rows at a time.
pub(crate) fn rows<T: Send>(out: &mut [T], row: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let row = row.max(1);
    pieces(out, row, |start, piece| {
        for (number, out) in piece.chunks_exact_mut(row).enumerate() {
            work(start / row + number, out);
        }
    });
}

/// Calls `work` with each item, on this thread and on those of the pool.
///
/// This thread begins at once and takes items until there are none, so short
/// work does not wait for another thread to wake up.
pub(crate) fn share<I: Iterator<Item: Send> + Send>(items: I, work: impl Fn(I::Item) + Sync) {
    let most = items.size_hint().1.unwrap_or(usize::MAX);
    let items = Mutex::new(items);
    let take = || locked(&items).next();
    with_helpers(most.saturating_sub(1), || std::iter::from_fn(take).for_each(&work));
}

/// The same for work that may fail. After a failure no further item is begun;
/// of several failures one is returned.
pub(crate) fn try_share<I: Iterator<Item: Send> + Send>(
    items: I,
    work: impl Fn(I::Item) -> Result<(), TensorError> + Sync,
) -> Result<(), TensorError> {
    let failure = Mutex::new(None);
    let unless_failed = items.take_while(|_| locked(&failure).is_none());
    share(unless_failed, |item| {
        if let Err(error) = work(item) {
            *locked(&failure) = Some(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// The number that `work` makes of each item, in their order.
pub(crate) fn map<I: ExactSizeIterator<Item: Send> + Send, O: Clone + Zero + Send>(
    items: I,
    work: impl Fn(I::Item) -> O + Sync,
) -> Vec<O> {
    let mut results = vec![O::zero(); items.len()];
    share(items.zip(&mut results), |(item, result)| *result = work(item));
    results
}

/// How many elements to hand out at a time, in whole rows.
pub(crate) fn whole_rows(row: usize) -> usize {
    let row = row.max(1);
    (PIECE / row).max(1) * row
}

/// What a lock holds. A panic elsewhere is reported by the scope it was in.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arithmetic on one piece of a result, compiled for every vector width and
/// run with the widest that this CPU has. The operations and their order are
/// the same for all; their number per instruction differs, and whether a
/// multiplication and an addition are rounded once.
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
