//! Copies of a state, which are written while the state changes.

use std::ops::Range;
use std::sync::Arc;

use memmap2::MmapMut;

use crate::plan::WriteItem;
use crate::state::{Bytes, DeviceReadError};

/// Memory for copies, kept from one background save to the next: the first touch of new
/// memory takes longer than the copy.
#[derive(Debug, Default)]
pub(super) struct Staging {
    memory: Option<Arc<MmapMut>>,
}

/// Items whose bytes no longer depend on the caller's.
pub(super) type StagedItems = Vec<(WriteItem, Bytes<'static>)>;

/// Copies begin at multiples of this, as elements do.
const ALIGNMENT: usize = 64;

/// A copy in memory that others share.
struct Copied {
    memory: Arc<MmapMut>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

impl Staging {
    /// Bytes of the memory that is kept.
    pub(super) fn kept(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.len() as u64)
    }

    /// Copies what is borrowed or on a device, on several threads.
    pub(super) fn copy(
        &mut self,
        items: Vec<(WriteItem, Bytes<'_>)>,
        threads: usize,
    ) -> Result<StagedItems, DeviceReadError> {
        let mut total = 0;
        let ranges: Vec<Range<usize>> = items
            .iter()
            .map(|(_, bytes)| {
                let start = total;
                let end = start + bytes.to_copy() as usize;
                total = end.next_multiple_of(ALIGNMENT);
                start..end
            })
            .collect();
        let mut memory = self.take(total)?;
        fill(&mut memory, &items, &ranges, threads)?;
        let memory = Arc::new(memory);
        self.memory = Some(Arc::clone(&memory));
        let staged = items.into_iter().zip(ranges).map(|((item, bytes), range)| {
            let bytes = match bytes {
                Bytes::Owned(bytes) => Bytes::Owned(bytes),
                Bytes::Shared(bytes) => Bytes::Shared(bytes),
                Bytes::Borrowed(_) | Bytes::Device(_) => {
                    Bytes::Shared(Arc::new(Copied { memory: Arc::clone(&memory), range }))
                }
            };
            (item, bytes)
        });
        Ok(staged.collect())
    }

    /// Memory of at least this size: what is kept, unless it is too small, far too large, or
    /// still being written.
    fn take(&mut self, length: usize) -> Result<MmapMut, DeviceReadError> {
        let kept = self.memory.take().and_then(|memory| Arc::try_unwrap(memory).ok());
        if let Some(memory) = kept
            && (length..=length.saturating_mul(2)).contains(&memory.len())
        {
            return Ok(memory);
        }
        let memory = MmapMut::map_anon(length.max(1)).map_err(|error| DeviceReadError {
            message: format!("cannot allocate {length} bytes for copies: {error}"),
        })?;
        // Fewer page faults. A system without huge pages does without.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        Ok(memory)
    }
}

/// Copies the bytes of items to their ranges, which are in order. Threads share the page
/// faults of new memory.
fn fill(
    memory: &mut [u8],
    items: &[(WriteItem, Bytes<'_>)],
    ranges: &[Range<usize>],
    threads: usize,
) -> Result<(), DeviceReadError> {
    let mut pieces = pieces(memory, items, ranges, threads.max(1)).into_iter();
    let copy = |share: Vec<Piece<'_, '_>>| {
        share.into_iter().try_for_each(|piece| piece.bytes.read(piece.start, piece.into))
    };
    std::thread::scope(|scope| {
        let own = pieces.next();
        let others: Vec<_> = pieces.map(|share| scope.spawn(move || copy(share))).collect();
        let mut outcome = own.map_or(Ok(()), copy);
        for other in others {
            outcome = outcome.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        outcome
    })
}

/// A part of an item's bytes, and where it goes.
struct Piece<'b, 'm> {
    bytes: &'b Bytes<'b>,
    start: usize,
    into: &'m mut [u8],
}

/// Divides the copies into shares of equal size, one for each thread.
fn pieces<'b, 'm>(
    memory: &'m mut [u8],
    items: &'b [(WriteItem, Bytes<'_>)],
    ranges: &[Range<usize>],
    threads: usize,
) -> Vec<Vec<Piece<'b, 'm>>> {
    let total: usize = ranges.iter().map(Range::len).sum();
    let share = total.div_ceil(threads).max(1);
    let mut shares = vec![Vec::new()];
    let (mut rest, mut before, mut left) = (memory, 0, share);
    for ((_, bytes), range) in items.iter().zip(ranges) {
        let (_, after) = std::mem::take(&mut rest).split_at_mut(range.start - before);
        let (mut into, after) = after.split_at_mut(range.len());
        (rest, before) = (after, range.end);
        let mut start = 0;
        while !into.is_empty() {
            if left == 0 {
                shares.push(Vec::new());
                left = share;
            }
            let length = into.len().min(left);
            let (piece, more) = std::mem::take(&mut into).split_at_mut(length);
            if let Some(last) = shares.last_mut() {
                last.push(Piece { bytes, start, into: piece });
            }
            (into, start, left) = (more, start + length, left - length);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::plan::{MetadataIndex, WriteData};
    use crate::state::Section;

    fn item(length: usize) -> WriteItem {
        let data = WriteData::Bytes { length: length as u64, digest: Fingerprint::of_whole([]) };
        WriteItem { index: MetadataIndex::whole("x"), section: Section::Training, data }
    }

    fn copied(staging: &mut Staging, values: &[Vec<u8>], threads: usize) -> StagedItems {
        let items = values.iter().map(|bytes| (item(bytes.len()), Bytes::Borrowed(bytes))).collect();
        staging.copy(items, threads).unwrap()
    }

    #[test]
    fn copies_are_equal_for_any_number_of_threads() {
        let values: Vec<Vec<u8>> =
            [0, 1, 63, 64, 65, 1000].iter().map(|&length| (0..length).map(|i| i as u8).collect()).collect();
        for threads in [1, 2, 3, 7, 2000] {
            let staged = copied(&mut Staging::default(), &values, threads);
            for ((_, bytes), value) in staged.iter().zip(&values) {
                assert_eq!(&*bytes.to_host().unwrap(), &value[..]);
            }
        }
        assert!(copied(&mut Staging::default(), &[], 2).is_empty());
    }

    #[test]
    fn memory_is_used_again_once_nothing_reads_it() {
        let mut staging = Staging::default();
        let first = copied(&mut staging, &[vec![1; 5000]], 2);
        let address = first[0].1.to_host().unwrap().as_ptr();
        // The first copy is still there.
        let second = copied(&mut staging, &[vec![2; 5000]], 2);
        assert_eq!(&*first[0].1.to_host().unwrap(), &[1; 5000][..]);
        let other = second[0].1.to_host().unwrap().as_ptr();
        assert_ne!(address, other);
        drop((first, second));
        let third = copied(&mut staging, &[vec![3; 4990]], 2);
        assert_eq!(third[0].1.to_host().unwrap().as_ptr(), other);
        assert_eq!(&*third[0].1.to_host().unwrap(), &[3; 4990][..]);
        drop(third);
        // Much less is not kept for a small state.
        copied(&mut staging, &[vec![4; 10]], 2);
        assert_eq!(staging.kept(), 64);
    }
}
