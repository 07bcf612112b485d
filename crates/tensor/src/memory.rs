//! A caching allocator.
//!
//! Fresh pages cost more than most element-wise kernels, because the system faults
//! each one in and clears it. So freed blocks stay in a cache by size class, and
//! return to the system only when the budget requires it or [`release`] is called.
//!
//! Blocks are aligned to a cache line. Size classes are at most a sixteenth apart.
//! Large blocks ask for huge pages, so that a TLB entry covers 512 times as much.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;
use rustc_hash::FxHashMap;
use weightloom_cuda::Gpu;

use crate::device::Device;
use crate::error::{Result, TensorError};

/// A cache line, as wide as the widest vector.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory for one tensor, returned to the cache when dropped.
pub(crate) struct Block {
    memory: Memory,
    bytes: usize,
}

/// The size from which blocks are mapped: one huge page.
const HUGE: usize = 2 << 20;

/// Zeroed memory from the system.
enum Memory {
    Lines(Vec<Line>),
    Pages(MmapMut),
}

impl Memory {
    fn new(size: usize) -> Result<Self> {
        if size < HUGE {
            let lines = bytemuck::try_zeroed_vec(size / size_of::<Line>());
            return lines.map(Self::Lines).map_err(|()| TensorError::NoMemory { asked: size });
        }
        let pages = MmapMut::map_anon(size).map_err(|_| TensorError::NoMemory { asked: size })?;
        // A request: without huge pages everything still works.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage);
        Ok(Self::Pages(pages))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice(lines),
            Self::Pages(pages) => pages,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice_mut(lines),
            Self::Pages(pages) => pages,
        }
    }
}

/// Figures of the allocator.
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
    free: Option<FxHashMap<usize, Vec<Memory>>>,
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

/// The figures of the allocator.
pub fn statistics() -> Statistics {
    cache().statistics
}

/// The figures of a device's memory. Blocks of a GPU are counted for all tensors of
/// this process on it.
pub fn statistics_of(device: Device) -> Result<Statistics> {
    let Device::Cuda(ordinal) = device else { return Ok(statistics()) };
    let weightloom_cuda::Statistics { in_use, high_water, cached, fresh, reused } =
        Gpu::get(ordinal)?.statistics();
    Ok(Statistics { in_use, high_water, cached, fresh, reused })
}

/// Resets the high-water mark of a device to the bytes in use.
pub fn reset_high_water_of(device: Device) -> Result<()> {
    match device {
        Device::Cuda(ordinal) => Gpu::get(ordinal)?.reset_high_water(),
        Device::Cpu | Device::Meta => reset_high_water(),
    }
    Ok(())
}

/// Resets the high-water mark to the bytes in use.
pub fn reset_high_water() {
    let mut cache = cache();
    cache.statistics.high_water = cache.statistics.in_use;
}

/// Sets the most bytes that tensors and the cache may hold together. Releases
/// cached blocks beyond it at once.
pub fn set_budget(bytes: usize) {
    let mut cache = cache();
    cache.budget = bytes;
    cache.shrink_to(bytes);
}

/// Returns all cached blocks to the system.
pub fn release() {
    cache().shrink_to(0);
}

/// Returns all cached blocks of a device.
pub fn release_of(device: Device) -> Result<()> {
    match device {
        Device::Cuda(ordinal) => Gpu::get(ordinal)?.release(),
        Device::Cpu | Device::Meta => release(),
    }
    Ok(())
}

/// The size of a block for at least this many bytes: sixteen classes per power
/// of two.
fn class(bytes: usize) -> usize {
    let lines = bytes.div_ceil(size_of::<Line>()).max(1);
    let step = (lines.next_power_of_two() / 32).max(1);
    lines.next_multiple_of(step).saturating_mul(size_of::<Line>())
}

impl Cache {
    /// Releases cached blocks until use and cache together fit, as far as possible.
    fn shrink_to(&mut self, bytes: usize) {
        let Some(free) = &mut self.free else { return };
        let mut classes: Vec<usize> = free.keys().copied().collect();
        classes.sort_unstable_by(|a, b| b.cmp(a));
        for class in classes {
            while self.statistics.cached > 0 && self.statistics.in_use + self.statistics.cached > bytes {
                if free.get_mut(&class).and_then(Vec::pop).is_none() {
                    break;
                }
                self.statistics.cached -= class;
            }
        }
    }
}

impl Block {
    /// A block of at least this many bytes, not cleared.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let size = class(bytes);
        if size > isize::MAX as usize / 2 {
            return Err(TensorError::NoMemory { asked: bytes });
        }
        let mut cache = cache();
        let in_use = cache.statistics.in_use.saturating_add(size);
        if in_use > cache.budget {
            let (in_use, budget) = (cache.statistics.in_use, cache.budget);
            return Err(TensorError::OutOfMemory { asked: bytes, in_use, budget });
        }
        let kept = cache.free.get_or_insert_with(FxHashMap::default).get_mut(&size).and_then(Vec::pop);
        cache.statistics.in_use = in_use;
        if let Some(memory) = kept {
            cache.statistics.cached -= size;
            cache.statistics.reused += 1;
            cache.statistics.high_water = cache.statistics.high_water.max(in_use);
            return Ok(Self { memory, bytes });
        }
        let budget = cache.budget;
        cache.shrink_to(budget);
        drop(cache);
        let memory = Memory::new(size);
        let mut cache = self::cache();
        if memory.is_err() {
            cache.statistics.in_use -= size;
        } else {
            cache.statistics.fresh += 1;
            cache.statistics.high_water = cache.statistics.high_water.max(cache.statistics.in_use);
        }
        Ok(Self { memory: memory?, bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.bytes]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::Lines(Vec::new()));
        let size = memory.bytes().len();
        let mut cache = cache();
        cache.statistics.in_use -= size;
        if cache.statistics.in_use + cache.statistics.cached + size <= cache.budget {
            cache.statistics.cached += size;
            cache.free.get_or_insert_with(FxHashMap::default).entry(size).or_default().push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_sixteenth() {
        for bytes in (1..200_000).step_by(37) {
            let size = class(bytes);
            assert!(size >= bytes && size <= bytes.next_multiple_of(64) * 17 / 16 + 64, "{bytes} {size}");
        }
    }

    #[test]
    fn blocks_are_aligned_and_of_the_size_asked_for() {
        for bytes in [0, 1, 63, 64, 65, 1000, HUGE - 1, HUGE, HUGE + 1] {
            let block = Block::new(bytes).unwrap();
            assert_eq!(block.bytes().len(), bytes);
            assert!(block.bytes().as_ptr().addr().is_multiple_of(64));
        }
    }

    #[test]
    fn memory_that_the_system_does_not_have_is_an_error() {
        assert!(matches!(Block::new(1 << 60), Err(TensorError::NoMemory { asked, .. }) if asked == 1 << 60));
        assert!(matches!(Block::new(usize::MAX), Err(TensorError::NoMemory { .. })));
        assert!(statistics().high_water < 1 << 60);
    }
}
