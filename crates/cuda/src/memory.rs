//! A cache of device memory by size classes.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::device::Gpu;

/// Figures of a device's memory, in bytes unless they say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes in blocks that are in use.
    pub in_use: usize,
    /// The most that `in_use` has been.
    pub high_water: usize,
    /// Bytes in blocks kept for reuse.
    pub cached: usize,
    /// Blocks taken from the driver.
    pub fresh: u64,
    /// Blocks taken from the cache.
    pub reused: u64,
}

/// Memory of a device. Dropping it returns it to the cache.
pub struct DeviceBlock {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) address: u64,
    /// The size of its class.
    pub(crate) size: usize,
    bytes: usize,
}

impl DeviceBlock {
    pub(crate) fn new(gpu: Arc<Gpu>, address: u64, size: usize, bytes: usize) -> Self {
        Self { gpu, address, size, bytes }
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The number of bytes that were asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl fmt::Debug for DeviceBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBlock({} bytes at {:#x})", self.bytes, self.address)
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        self.gpu.give_back(self.address, self.size);
    }
}

/// Blocks that are free, by size.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) free: FxHashMap<usize, Vec<u64>>,
    pub(crate) statistics: Statistics,
    pub(crate) budget: usize,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self { free: FxHashMap::default(), statistics: Statistics::default(), budget: usize::MAX }
    }

    /// Takes a block out of the cache.
    pub(crate) fn take(&mut self, size: usize) -> Option<u64> {
        let address = self.free.get_mut(&size).and_then(Vec::pop)?;
        self.statistics.cached -= size;
        self.statistics.reused += 1;
        Some(address)
    }

    /// Empties the cache, and returns its blocks.
    pub(crate) fn drain(&mut self) -> Vec<u64> {
        self.statistics.cached = 0;
        self.free.drain().flat_map(|(_, addresses)| addresses).collect()
    }

    /// Raises the high-water mark to the bytes in use.
    pub(crate) fn raise_high_water(&mut self) {
        self.statistics.high_water = self.statistics.high_water.max(self.statistics.in_use);
    }
}

/// The size of a block for at least this many bytes: sixteen classes per power of
/// two, and multiples of 512, which aligns every vector load.
pub(crate) fn class(bytes: usize) -> usize {
    const UNIT: usize = 512;
    let units = bytes.div_ceil(UNIT).max(1);
    let step = (units.next_power_of_two() / 32).max(1);
    units.next_multiple_of(step).saturating_mul(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_sixteenth() {
        for bytes in (1..2_000_000).step_by(371) {
            let size = class(bytes);
            assert!(size >= bytes && size <= bytes.next_multiple_of(512) * 17 / 16 + 512, "{bytes} {size}");
        }
    }
}
