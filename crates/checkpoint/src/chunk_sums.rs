//! Sums of element hashes over chunks of every tensor: checksums and
//! fingerprints at once, combined across ranks by one all-reduce.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use weightloom_gang::{Gang, GangError, GangExt};
use weightloom_layout::{DType, ReduceOp, Region, Shape};

use crate::fingerprint::{ElementSum, Fingerprint};

/// Number of chunks of a checkpoint, about.
const CHUNKS: u64 = 16_384;

/// The smallest chunk, in bytes.
const SMALLEST: u64 = 1 << 20;

/// Sums over chunks of tensors, filled by many threads.
#[derive(Debug, Default)]
pub struct ChunkSums {
    chunk_size: u64,
    tensors: BTreeMap<String, TensorSums>,
    low: Vec<AtomicU64>,
    high: Vec<AtomicU64>,
    /// Elements that were added to each chunk.
    counts: Vec<AtomicU64>,
    /// By tensor: `Σ boundary(end) - boundary(start)` over all runs that were
    /// added, which is `boundary(volume) - boundary(0)` exactly if every
    /// element was added once. See [`ChunkSums::covers_once`].
    coverage: Vec<AtomicU64>,
}

/// The sum of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkSum {
    /// The low half of the sum.
    pub(crate) low: u64,
    /// Number of elements in it.
    pub(crate) count: u64,
}

/// Which halves of sums to compute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Halves {
    /// The low half: checksums.
    Low,
    /// Both halves: fingerprints.
    Both,
}

/// The chunks of one tensor.
#[derive(Clone, Debug)]
struct TensorSums {
    number: usize,
    dtype: DType,
    shape: Shape,
    /// Elements of one chunk.
    elements: u64,
    first: usize,
    count: usize,
}

/// Fingerprint and checksums of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorChecksums {
    /// The tensor's fingerprint.
    pub fingerprint: Fingerprint,
    /// The checksum of each chunk.
    pub chunks: Vec<u64>,
}

/// The chunk size for a checkpoint of `total` bytes.
pub fn chunk_size_for(total: u64) -> u64 {
    (total / CHUNKS).next_power_of_two().max(SMALLEST)
}

impl ChunkSums {
    /// Zero sums for these tensors, in chunks of `chunk_size` bytes.
    pub fn new<'a>(chunk_size: u64, tensors: impl IntoIterator<Item = (&'a str, DType, &'a Shape)>) -> Self {
        let mut sums = Self { chunk_size, ..Self::default() };
        let mut first = 0;
        for (number, (name, dtype, shape)) in tensors.into_iter().enumerate() {
            let elements = (chunk_size / dtype.size() as u64).max(1);
            let count = (shape.volume() as u64).div_ceil(elements) as usize;
            let entry = TensorSums { number, dtype, shape: shape.clone(), elements, first, count };
            sums.tensors.insert(name.to_owned(), entry);
            first += count;
        }
        sums.low.resize_with(first, AtomicU64::default);
        sums.counts.resize_with(first, AtomicU64::default);
        sums.high.resize_with(sums.tensors.len(), AtomicU64::default);
        sums.coverage.resize_with(sums.tensors.len(), AtomicU64::default);
        sums
    }

    /// Bytes of one chunk.
    pub fn chunk_size(&self) -> u64 {
        self.chunk_size
    }

    /// Adds elements that are contiguous in the whole tensor. Ignores tensors
    /// without sums.
    pub fn add_run(&self, name: &str, position: u64, bytes: &[u8]) {
        if let Some(tensor) = self.tensors.get(name) {
            self.add(tensor, position, bytes, Halves::Both);
        }
    }

    fn add(&self, tensor: &TensorSums, position: u64, bytes: &[u8], halves: Halves) {
        let width = tensor.dtype.size();
        let end = position + (bytes.len() / width) as u64;
        let covered = boundary(end).wrapping_sub(boundary(position));
        self.coverage[tensor.number].fetch_add(covered, Ordering::Relaxed);
        let (mut position, mut rest) = (position, bytes);
        let mut high = 0u64;
        while !rest.is_empty() {
            let chunk = position / tensor.elements;
            let until = ((chunk + 1) * tensor.elements - position) as usize * width;
            let (part, after) = rest.split_at(until.min(rest.len()));
            let sum = match halves {
                Halves::Both => ElementSum::of_run(width, position, part),
                Halves::Low => ElementSum { low: ElementSum::low_of_run(width, position, part), high: 0 },
            };
            self.low[tensor.first + chunk as usize].fetch_add(sum.low, Ordering::Relaxed);
            let count = (part.len() / width) as u64;
            self.counts[tensor.first + chunk as usize].fetch_add(count, Ordering::Relaxed);
            high = high.wrapping_add(sum.high);
            position += count;
            rest = after;
        }
        self.high[tensor.number].fetch_add(high, Ordering::Relaxed);
    }

    /// Adds an entry of bytes that is written with its elements. An entry without
    /// elements would otherwise leave no trace.
    pub(crate) fn add_entry(&self, name: &str) {
        if let Some(tensor) = self.tensors.get(name) {
            self.coverage[tensor.number].fetch_add(ENTRY, Ordering::Relaxed);
        }
    }

    /// Adds an entry of bytes that is written elsewhere and has no sums.
    pub(crate) fn add_unsummed_entry(&self, name: &str) {
        if let Some(tensor) = self.tensors.get(name) {
            let covered = tensor.whole_coverage().wrapping_add(ENTRY);
            self.coverage[tensor.number].fetch_add(covered, Ordering::Relaxed);
        }
    }

    /// Adds a region's elements, row-major in `bytes`, to the checksums, but not
    /// to the fingerprint. Ignores elements of another dtype than was saved.
    pub(crate) fn add_checked(&self, name: &str, region: &Region, dtype: DType, bytes: &[u8]) {
        let Some(tensor) = self.tensors.get(name).filter(|tensor| tensor.dtype == dtype) else { return };
        let Ok(runs) = region.runs(&tensor.shape) else { return };
        let mut rest = bytes;
        for run in runs {
            let (part, behind) = rest.split_at(run.len() * tensor.dtype.size());
            self.add(tensor, run.start as u64, part, Halves::Low);
            rest = behind;
        }
    }

    /// Adds up the sums of all ranks. Every rank.
    pub fn combine(&self, gang: &dyn Gang) -> Result<(), GangError> {
        if gang.size() == 1 {
            return Ok(());
        }
        let all = || self.low.iter().chain(&self.high).chain(&self.counts).chain(&self.coverage);
        let mut flat: Vec<u64> = all().map(|sum| sum.load(Ordering::Relaxed)).collect();
        gang.all_reduce(&mut flat, ReduceOp::Sum)?;
        all().zip(flat).for_each(|(sum, total)| sum.store(total, Ordering::Relaxed));
        Ok(())
    }

    /// Whether every element of a tensor was added exactly once.
    ///
    /// The boundaries of runs telescope: over any set of runs, the hashes of
    /// their ends minus those of their starts leave only the boundaries where
    /// the number of runs that cover an element changes. If just the ends of
    /// the tensor are left, that number is one throughout. Holes and overlaps
    /// of any size show, unless 64-bit hashes collide.
    pub(crate) fn covers_once(&self, name: &str) -> bool {
        let Some(tensor) = self.tensors.get(name) else { return false };
        self.coverage[tensor.number].load(Ordering::Relaxed) == tensor.whole_coverage()
    }

    /// Whether an entry of bytes was added exactly once, with all its elements.
    pub(crate) fn has_entry_once(&self, name: &str) -> bool {
        let Some(tensor) = self.tensors.get(name) else { return false };
        let expected = tensor.whole_coverage().wrapping_add(ENTRY);
        self.coverage[tensor.number].load(Ordering::Relaxed) == expected
    }

    /// The sums of each chunk, by tensor.
    pub(crate) fn counted(&self) -> BTreeMap<String, Vec<ChunkSum>> {
        let load = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let stretches = self.tensors.iter().map(|(name, tensor)| {
            let range = tensor.first..tensor.first + tensor.count;
            let counted =
                range.map(|at| ChunkSum { low: load(&self.low[at]), count: load(&self.counts[at]) });
            (name.clone(), counted.collect())
        });
        stretches.collect()
    }

    /// Fingerprints and checksums by tensor.
    pub fn totals(&self) -> BTreeMap<String, TensorChecksums> {
        let load = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let totals = self.tensors.iter().map(|(name, tensor)| {
            let chunks: Vec<u64> =
                self.low[tensor.first..tensor.first + tensor.count].iter().map(load).collect();
            let low = chunks.iter().fold(0u64, |sum, chunk| sum.wrapping_add(*chunk));
            let sum = ElementSum { low, high: load(&self.high[tensor.number]) };
            let fingerprint = Fingerprint::of_tensor(tensor.dtype, &tensor.shape, sum);
            (name.clone(), TensorChecksums { fingerprint, chunks })
        });
        totals.collect()
    }
}

impl TensorSums {
    /// The coverage if every element was added once.
    fn whole_coverage(&self) -> u64 {
        boundary(self.shape.volume() as u64).wrapping_sub(boundary(0))
    }
}

/// The coverage of an entry beside that of its elements: a number that no few
/// boundaries add up to.
const ENTRY: u64 = 0x6a09_e667_f3bc_c909;

/// A hash of a position between two elements (SplitMix64).
fn boundary(position: u64) -> u64 {
    let mut x = position.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_and_an_overlap_of_the_same_size_are_noticed() {
        let shape = Shape::new(&[100]).unwrap();
        let covers = |runs: &[std::ops::Range<u64>]| {
            let sums = ChunkSums::new(1 << 20, [("w", DType::U8, &shape)]);
            for run in runs {
                sums.add_run("w", run.start, &vec![1; (run.end - run.start) as usize]);
            }
            let counted: u64 = sums.counted()["w"].iter().map(|chunk| chunk.count).sum();
            (counted, sums.covers_once("w"))
        };
        assert_eq!(covers(&[60..100, 0..60]), (100, true));
        assert_eq!(covers(&[0..60, 50..60, 70..100]), (100, false));
        // The same sum and the same sum of squares of positions.
        assert!(!covers(&[0..100, 0..1, 4..5, 5..6]).1);
        assert_eq!(covers(&[0..99]), (99, false));
    }

    #[test]
    fn entries_without_elements_count_too() {
        for length in [0, 5] {
            let shape = Shape::new(&[length]).unwrap();
            let sums = ChunkSums::new(1 << 20, [("bytes", DType::U8, &shape)]);
            assert!(!sums.has_entry_once("bytes"));
            sums.add_run("bytes", 0, &vec![1; length]);
            sums.add_entry("bytes");
            assert!(sums.has_entry_once("bytes"));
            sums.add_unsummed_entry("bytes");
            assert!(!sums.has_entry_once("bytes"));
        }
    }
}
