//! Work split into pieces that do not depend on the number of threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use num_traits::Zero;
use pulp::{Simd, WithSimd};

use crate::error::Result;
use crate::threads::with_helpers;
use crate::vectors::dispatch;

/// Elements in a piece: enough to be worth a thread, few enough for the cache.
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
/// The calling thread starts at once and takes items until none are left, so that
/// short work does not wait for another thread to wake up.
pub(crate) fn share<I: Iterator<Item: Send> + Send>(items: I, work: impl Fn(I::Item) + Sync) {
    let most = items.size_hint().1.unwrap_or(usize::MAX);
    let items = Mutex::new(items);
    let take = || locked(&items).next();
    with_helpers(most.saturating_sub(1), || std::iter::from_fn(take).for_each(&work));
}

/// As [`share`], for work that may fail. After a failure no further item starts;
/// of several failures one is returned.
pub(crate) fn try_share<I: Iterator<Item: Send> + Send>(
    items: I,
    work: impl Fn(I::Item) -> Result<()> + Sync,
) -> Result<()> {
    let failure = Mutex::new(None);
    let unless_failed = items.take_while(|_| locked(&failure).is_none());
    share(unless_failed, |item| {
        if let Err(error) = work(item) {
            *locked(&failure) = Some(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Maps items in parallel, keeping their order.
pub(crate) fn map<I: ExactSizeIterator<Item: Send> + Send, O: Clone + Zero + Send>(
    items: I,
    work: impl Fn(I::Item) -> O + Sync,
) -> Vec<O> {
    let mut results = vec![O::zero(); items.len()];
    share(items.zip(&mut results), |(item, result)| *result = work(item));
    results
}

/// The size of a piece made of whole rows.
pub(crate) fn whole_rows(row: usize) -> usize {
    let row = row.max(1);
    (PIECE / row).max(1) * row
}

/// Locks, ignoring poison: the scope of a panic reports it.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arithmetic on one piece of a result, compiled for every vector width and
/// run with the widest that this CPU has. The operations and their order are
/// the same for all; their number per instruction differs, and whether a
/// multiplication and an addition are rounded once.
///
/// `run` is always inlined and takes the width as a type, so that closures in it
/// are compiled for each width too: a function that vector code merely calls is
/// not vectorised. The macro [`kernel`] declares such types.
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

/// Declares a [`Kernel`]: its fields, then the code for a piece.
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
