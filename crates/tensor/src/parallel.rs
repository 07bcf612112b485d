//! Cutting work into pieces that do not depend on the number of threads.

use rayon::prelude::*;

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
