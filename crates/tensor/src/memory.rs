//! A caching allocator.
//!
//! Fresh pages cost more than the arithmetic of most element-wise work: each is
//! faulted in and cleared by the system. So blocks are kept when they are freed
//! and handed out again by size class, and nothing is returned to the system
//! until the budget demands it or [`release`] is called.
//!
//! Blocks are aligned to a cache line. Classes are at most a quarter apart.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};
use rustc_hash::FxHashMap;

use crate::error::TensorError;

/// One cache line, which also is the widest vector.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory for one tensor, given back to the cache when dropped.
pub(crate) struct Block {
    lines: Vec<Line>,
    bytes: usize,
}

/// What the allocator has given out and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes in blocks that tensors hold.
    pub in_use: usize,
    /// The most that `in_use` has been.
    pub high_water: usize,
    /// Bytes in blocks kept for reuse.
    pub cached: usize,
    /// Blocks taken from the system.
    pub fresh: u64,
    /// Blocks taken from the cache.
    pub reused: u64,
}

struct Cache {
    free: Option<FxHashMap<usize, Vec<Vec<Line>>>>,
    statistics: Statistics,
    budget: usize,
}

static CACHE: Mutex<Cache> = Mutex::new(Cache {
    free: None,
    statistics: Statistics { in_use: 0, high_water: 0, cached: 0, fresh: 0, reused: 0 },
    budget: usize::MAX,
});

fn cache() -> MutexGuard<'static, Cache> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the allocator has given out and kept.
pub fn statistics() -> Statistics {
    cache().statistics
}

/// Starts a new high-water mark from what is in use now.
pub fn reset_high_water() {
    let mut cache = cache();
    cache.statistics.high_water = cache.statistics.in_use;
}

/// Sets the most bytes that tensors and the cache may hold together. What is
/// cached beyond it is released at once.
pub fn set_budget(bytes: usize) {
    let mut cache = cache();
    cache.budget = bytes;
    cache.shrink_to(bytes);
}

/// Returns everything that is cached to the system.
pub fn release() {
    cache().shrink_to(0);
}

/// Lines in a block for at least this many bytes: four classes per power of
/// two.
fn class(bytes: usize) -> usize {
    let lines = bytes.div_ceil(size_of::<Line>()).max(1);
    if lines <= 4 {
        return lines;
    }
    let step = (lines.next_power_of_two() / 2) / 4;
    lines.next_multiple_of(step.max(1))
}

impl Cache {
    /// Releases cached blocks until use and cache together fit, as far as that
    /// is possible.
    fn shrink_to(&mut self, bytes: usize) {
        let Some(free) = &mut self.free else { return };
        let mut classes: Vec<usize> = free.keys().copied().collect();
        classes.sort_unstable_by(|a, b| b.cmp(a));
        for class in classes {
            while self.statistics.cached > 0 && self.statistics.in_use + self.statistics.cached > bytes {
                if free.get_mut(&class).and_then(Vec::pop).is_none() {
                    break;
                }
                self.statistics.cached -= class * size_of::<Line>();
            }
        }
    }
}

impl Block {
    /// A block of at least this many bytes. Its contents are whatever was there
    /// before; fresh memory is zero.
    pub(crate) fn new(bytes: usize) -> Result<Self, TensorError> {
        let class = class(bytes);
        let size = class * size_of::<Line>();
        let mut cache = cache();
        if cache.statistics.in_use.saturating_add(size) > cache.budget {
            let (in_use, budget) = (cache.statistics.in_use, cache.budget);
            return Err(TensorError::OutOfMemory { asked: bytes, in_use, budget });
        }
        let kept = cache.free.get_or_insert_with(FxHashMap::default).get_mut(&class).and_then(Vec::pop);
        cache.statistics.in_use += size;
        cache.statistics.high_water = cache.statistics.high_water.max(cache.statistics.in_use);
        let lines = match kept {
            Some(lines) => {
                cache.statistics.cached -= size;
                cache.statistics.reused += 1;
                lines
            }
            None => {
                cache.statistics.fresh += 1;
                let budget = cache.budget;
                cache.shrink_to(budget);
                drop(cache);
                bytemuck::zeroed_vec(class)
            }
        };
        Ok(Self { lines, bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let (class, size) = (lines.len(), lines.len() * size_of::<Line>());
        let mut cache = cache();
        cache.statistics.in_use -= size;
        if cache.statistics.in_use + cache.statistics.cached + size <= cache.budget {
            cache.statistics.cached += size;
            cache.free.get_or_insert_with(FxHashMap::default).entry(class).or_default().push(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_quarter() {
        for bytes in (1..200_000).step_by(37) {
            let size = class(bytes) * 64;
            assert!(size >= bytes && size <= bytes.next_multiple_of(64) * 5 / 4 + 64, "{bytes} {size}");
        }
    }

    #[test]
    fn blocks_are_aligned_and_of_the_size_asked_for() {
        for bytes in [0, 1, 63, 64, 65, 1000] {
            let block = Block::new(bytes).unwrap();
            assert_eq!(block.bytes().len(), bytes);
            assert!(block.bytes().as_ptr().addr().is_multiple_of(64));
        }
    }
}
