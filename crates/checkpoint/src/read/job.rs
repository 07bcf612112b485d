//! One job of a read: a contiguous part of a destination, filled by one thread.

use weightloom_layout::{DType, Region};

use super::extents::params_tile;
use super::segment::{Order, Repeats, Segment, Segments, order};
use super::{Pool, ReadRequest};
use crate::cast::cast;
use crate::codec::{AffineCodec, BlockCodec, Codec, GroupParams};
use crate::error::CheckpointError;
use crate::formats::mlx::AffineRun;
use crate::index::{FileId, TensorEntry, Tile};

/// The shortest run that is read directly into its destination.
const STRAIGHT: usize = 32 << 10;

/// The most segments that are gathered into one read.
const GATHERED: usize = 1 << 16;

/// A contiguous part of a destination.
pub(super) struct Job<'a> {
    pub(super) name: &'a str,
    pub(super) entry: &'a TensorEntry,
    pub(super) region: Region,
    pub(super) dtype: DType,
    pub(super) into: &'a mut [u8],
}

impl<'a> Job<'a> {
    /// The job that fills a whole request.
    pub(super) fn of(want: ReadRequest<'a>) -> Self {
        let ReadRequest { entry, name, region, dtype, into } = want;
        Self { name, entry, region, dtype, into }
    }

    /// Splits off about `stretch` bytes.
    pub(super) fn first(self, stretch: usize) -> (Self, Option<Self>) {
        // A transposed tile is read in file order, which fills the whole
        // destination little by little.
        let whole = self.entry.tiles.iter().any(|tile| order(tile) == Order::Other);
        // Outer dims have size 1, so steps of this dim are contiguous.
        let dim = self.region.size().iter().position(|&size| size > 1);
        let Some(dim) = dim.filter(|_| self.into.len() > stretch && !whole) else { return (self, None) };
        let Self { name, entry, region, dtype, into } = self;
        let range = region.range(dim);
        let step = into.len() / range.len();
        let steps = (stretch / step).clamp(1, range.len() - 1);
        let middle = range.start + steps;
        let (head, tail) = into.split_at_mut(steps * step);
        let part = |range, into| Self { name, entry, region: region.with_range(dim, range), dtype, into };
        (part(range.start..middle, head), Some(part(middle..range.end, tail)))
    }
}

/// Open jobs, the next one last. They are split lazily: a list of all would grow
/// as the budget shrinks.
pub(super) struct Jobs<'a> {
    open: Vec<Job<'a>>,
    stretch: usize,
}

impl<'a> Jobs<'a> {
    /// Sorts the jobs by file and offset, for disks and caches.
    pub(super) fn new(mut jobs: Vec<Job<'a>>, stretch: usize) -> Self {
        jobs.sort_by_key(|job| std::cmp::Reverse(job.location()));
        Self { open: jobs, stretch }
    }

    pub(super) fn next(&mut self) -> Option<Job<'a>> {
        loop {
            match self.open.pop()?.first(self.stretch) {
                // A single step may still be too long and is split again.
                (first, Some(rest)) => self.open.extend([rest, first]),
                (first, None) if first.into.is_empty() => {}
                (first, None) => return Some(first),
            }
        }
    }
}

impl Job<'_> {
    /// The first file and offset of the job.
    pub(super) fn location(&self) -> (FileId, u64) {
        let tiles = self.entry.tiles.iter();
        let first = tiles.filter_map(|tile| {
            let part = tile.region.intersect(&self.region)?;
            let ahead = (0..part.ndim())
                .map(|dim| (part.start()[dim] - tile.region.start()[dim]) as u64 * tile.strides[dim]);
            Some((tile.file, tile.offset + ahead.sum::<u64>()))
        });
        first.min().unwrap_or((FileId(0), 0))
    }

    pub(super) fn run(&mut self, pool: &Pool<'_>, staging: &mut Vec<u8>) -> Result<(), CheckpointError> {
        let Some(sums) = pool.sums else { return self.fill(pool, staging) };
        if self.dtype == self.entry.dtype {
            self.fill(pool, staging)?;
            sums.add_checked(self.name, &self.region, self.dtype, self.into);
            return Ok(());
        }
        // Checksums cover elements as they were saved.
        let mut saved = vec![0; self.region.volume() * self.entry.dtype.size()];
        let (name, entry, region) = (self.name, self.entry, self.region.clone());
        Job { name, entry, region, dtype: entry.dtype, into: &mut saved }.fill(pool, staging)?;
        sums.add_checked(self.name, &self.region, entry.dtype, &saved);
        cast(entry.dtype, &saved, self.dtype, self.into);
        Ok(())
    }

    fn fill(&mut self, pool: &Pool<'_>, staging: &mut Vec<u8>) -> Result<(), CheckpointError> {
        let entry = self.entry;
        for tile in &entry.tiles {
            let Some(part) = tile.region.intersect(&self.region).filter(|part| !part.is_empty()) else {
                continue;
            };
            match &tile.codec {
                Codec::Raw => self.raw(pool, tile, &part, staging)?,
                Codec::Blocks(blocks) => self.blocks(pool, tile, blocks, &part, staging)?,
                Codec::Affine(affine) => self.affine(pool, tile, affine, &part, staging)?,
            }
        }
        Ok(())
    }

    fn raw(
        &mut self,
        pool: &Pool<'_>,
        tile: &Tile,
        part: &Region,
        staging: &mut Vec<u8>,
    ) -> Result<(), CheckpointError> {
        let width = self.entry.dtype.size();
        let segments = Segments::new(tile, width as u64, part, &self.region);
        let repeats = segments.repeats();
        let straight = self.entry.dtype == self.dtype && repeats.is_single();
        let mut gathered = Gathered::default();
        for whole in segments {
            if straight && whole.step == 1 && whole.count * width >= STRAIGHT {
                let start = whole.target * width;
                pool.fetch(tile.file, whole.offset, &mut self.into[start..start + whole.count * width])?;
                continue;
            }
            for segment in split_segment(whole, width, pool.stretch) {
                let end = segment.offset + (segment.count * width) as u64;
                if !gathered.takes(segment.offset, end, pool) {
                    self.scatter(pool, tile.file, &mut gathered, &repeats, staging)?;
                }
                gathered.add(segment, end);
            }
        }
        self.scatter(pool, tile.file, &mut gathered, &repeats, staging)
    }

    /// Reads the gathered segments and scatters them to the destination.
    fn scatter(
        &mut self,
        pool: &Pool<'_>,
        file: FileId,
        gathered: &mut Gathered,
        repeats: &Repeats,
        staging: &mut Vec<u8>,
    ) -> Result<(), CheckpointError> {
        let Some(first) = gathered.segments.first() else { return Ok(()) };
        let start = first.offset;
        staging.resize((gathered.end - start) as usize, 0);
        pool.fetch(file, start, staging)?;
        let width = self.entry.dtype.size();
        for segment in gathered.segments.drain(..) {
            let from = (segment.offset - start) as usize;
            let bytes = &staging[from..from + segment.count * width];
            for distance in repeats.each() {
                put(self.entry.dtype, bytes, self.dtype, segment.target + distance, segment.step, self.into);
            }
        }
        Ok(())
    }

    fn blocks(
        &mut self,
        pool: &Pool<'_>,
        tile: &Tile,
        blocks: &BlockCodec,
        part: &Region,
        staging: &mut Vec<u8>,
    ) -> Result<(), CheckpointError> {
        let (elements, bytes) = (blocks.format.elements(), blocks.format.bytes());
        let ahead = part.start()[blocks.dim] - tile.region.start()[blocks.dim] + blocks.lead;
        let (skip, lead) = ((ahead / elements * bytes) as u64, ahead % elements);
        let count = part.size()[blocks.dim];
        let row = (lead + count).div_ceil(elements) * bytes;
        let mut values = vec![0.0; (lead + count).div_ceil(elements) * elements];
        let mut gathered = Gathered::default();
        let mut rows = Segments::new(tile, 0, part, &self.region).peekable();
        while let Some(segment) = rows.next() {
            let start = segment.offset + skip;
            gathered.add(Segment { offset: start, ..segment }, start + row as u64);
            let next = rows.peek().map(|next| next.offset + skip);
            if next.is_some_and(|next| gathered.takes(next, next + row as u64, pool)) {
                continue;
            }
            let first = gathered.first();
            staging.resize((gathered.end - first) as usize, 0);
            pool.fetch(tile.file, first, staging)?;
            for segment in std::mem::take(&mut gathered.segments) {
                let packed = &staging[(segment.offset - first) as usize..][..row];
                for (block, into) in packed.chunks_exact(bytes).zip(values.chunks_exact_mut(elements)) {
                    blocks.format.decode(block, into);
                }
                self.put_values(&values[lead..lead + count], segment);
            }
        }
        Ok(())
    }

    fn affine(
        &mut self,
        pool: &Pool<'_>,
        tile: &Tile,
        affine: &AffineCodec,
        part: &Region,
        staging: &mut Vec<u8>,
    ) -> Result<(), CheckpointError> {
        let ahead = part.start()[affine.dim] - tile.region.start()[affine.dim];
        let here = AffineCodec { lead: affine.lead + ahead, ..affine.clone() };
        let count = part.size()[affine.dim];
        let width = self.entry.dtype.size();
        let (skip, words) = here.word_bytes(count);
        let (side_skip, side) = here.side_bytes(count, width);
        let mut values = vec![0.0; count];
        // Rows of one job are near each other: their scales and biases are read
        // at once.
        let scales = self.group_params(pool, tile, &affine.scales, part, side_skip, side)?;
        let biases = self.group_params(pool, tile, &affine.biases, part, side_skip, side)?;
        for (row, segment) in Segments::new(tile, 0, part, &self.region).enumerate() {
            staging.resize(words as usize, 0);
            pool.fetch(tile.file, segment.offset + skip, staging)?;
            let run = AffineRun {
                bits: here.bits,
                group: here.group,
                lead: here.lead,
                dtype: self.entry.dtype,
                words: staging,
                scales: scales.row(row),
                biases: biases.row(row),
            };
            run.decode(&mut values);
            self.put_values(&values, segment);
        }
        Ok(())
    }

    /// The scales or biases of all rows of a region.
    fn group_params(
        &self,
        pool: &Pool<'_>,
        tile: &Tile,
        side: &GroupParams,
        part: &Region,
        skip: u64,
        length: u64,
    ) -> Result<ParamRows, CheckpointError> {
        let rows = Segments::new(&params_tile(tile, side), 0, part, &self.region);
        let starts: Vec<u64> = rows.map(|row| row.offset + skip).collect();
        let (first, last) = (starts.iter().min().copied(), starts.iter().max().copied());
        let (first, end) = (first.unwrap_or(0), last.unwrap_or(0) + length);
        // Rows that are far apart, as in a transposed tensor, are read one by one.
        if end - first > starts.len() as u64 * length * 2 {
            let mut bytes = vec![0; starts.len() * length as usize];
            for (start, into) in starts.iter().zip(bytes.chunks_exact_mut((length as usize).max(1))) {
                pool.fetch(side.file, *start, into)?;
            }
            let starts = (0..starts.len()).map(|row| row * length as usize).collect();
            return Ok(ParamRows { bytes, starts, length: length as usize });
        }
        let mut bytes = vec![0; (end - first) as usize];
        pool.fetch(side.file, first, &mut bytes)?;
        let starts = starts.iter().map(|start| (start - first) as usize).collect();
        Ok(ParamRows { bytes, starts, length: length as usize })
    }

    /// Puts decoded values into the destination.
    fn put_values(&mut self, values: &[f32], segment: Segment) {
        // Round to the tensor's dtype first, so that a region equals the same
        // region of the whole.
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if self.entry.dtype == DType::F32 || self.entry.dtype == self.dtype {
            put(DType::F32, bytes, self.dtype, segment.target, segment.step, self.into);
        } else {
            let mut own = vec![0; values.len() * self.entry.dtype.size()];
            cast(DType::F32, bytes, self.entry.dtype, &mut own);
            put(self.entry.dtype, &own, self.dtype, segment.target, segment.step, self.into);
        }
    }
}

/// Scales or biases, row by row.
struct ParamRows {
    bytes: Vec<u8>,
    starts: Vec<usize>,
    length: usize,
}

impl ParamRows {
    fn row(&self, row: usize) -> &[u8] {
        &self.bytes[self.starts[row]..][..self.length]
    }
}

/// Writes elements into a destination, `step` elements apart.
fn put(from: DType, bytes: &[u8], to: DType, target: usize, step: usize, into: &mut [u8]) {
    let (source, width) = (from.size(), to.size());
    let count = bytes.len() / source;
    if step == 1 {
        cast(from, bytes, to, &mut into[target * width..(target + count) * width]);
        return;
    }
    for (number, element) in bytes.chunks_exact(source).enumerate() {
        let at = (target + number * step) * width;
        cast(from, element, to, &mut into[at..at + width]);
    }
}

/// Splits a segment that is too long for one read.
fn split_segment(whole: Segment, width: usize, stretch: usize) -> impl Iterator<Item = Segment> {
    let most = (stretch / width).max(1);
    (0..whole.count).step_by(most).map(move |start| Segment {
        offset: whole.offset + (start * width) as u64,
        target: whole.target + start * whole.step,
        count: most.min(whole.count - start),
        step: whole.step,
    })
}

/// Segments to read at once.
#[derive(Default)]
struct Gathered {
    segments: Vec<Segment>,
    end: u64,
}

impl Gathered {
    /// Whether another segment is near enough to be read together.
    fn takes(&self, offset: u64, end: u64, pool: &Pool<'_>) -> bool {
        let Some(first) = self.segments.first() else { return true };
        offset >= self.end
            && offset - self.end <= pool.source.storage.gap()
            && end - first.offset <= pool.stretch as u64
            && self.segments.len() < GATHERED
    }

    /// Where the first segment begins.
    fn first(&self) -> u64 {
        self.segments.first().map_or(0, |first| first.offset)
    }

    fn add(&mut self, segment: Segment, end: u64) {
        self.segments.push(segment);
        self.end = end;
    }
}
