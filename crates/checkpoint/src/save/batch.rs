//! The items that a rank writes, with their bytes.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};

use weightloom_gang::{Gang, GangExt};
use weightloom_layout::ReduceOp;

use super::SaveOptions;
use super::open_target::{FolderFiles, OpenTarget, WriteAccess};
use super::redistribute::Redistributed;
use super::sequential::SequentialWriter;
use super::shared_upload::upload_shared;
use super::staging::Staging;
use crate::chunk_sums::ChunkSums;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::observer::Observer;
use crate::plan::{PlanError, PlannerCalls, PlannerProblem, SavePlan, SavePlanner, WriteData, WriteItem};
use crate::state::{Bytes, DeviceBytes, DeviceReadError, State};

/// Bytes that are hashed and written at once: few enough to stay in the CPU
/// cache in between.
const CHUNK: usize = 512 << 10;

/// Bytes of a device that are in host memory at once while they are written.
const DEVICE_GROUP: usize = 64 << 20;

/// Items with their bytes.
pub(crate) struct WriteBatch<'a> {
    items: Vec<(WriteItem, Bytes<'a>)>,
    /// The outcome of items that were written while staging.
    done: Option<WriteOutcome>,
}

/// What a rank wrote.
pub(crate) struct WriteOutcome {
    pub(crate) bytes: u64,
    pub(crate) sums: ChunkSums,
}

/// Where a batch is written, and how.
#[derive(Clone, Copy)]
pub(super) struct WriteContext<'a> {
    pub(super) target: &'a OpenTarget,
    pub(super) threads: Option<usize>,
    pub(super) gang: &'a dyn Gang,
    pub(super) observer: &'a dyn Observer,
}

impl<'a> WriteBatch<'a> {
    /// The items of a plan with their bytes.
    pub(super) fn new(
        planner: &dyn SavePlanner,
        state: &'a State<'_>,
        plan: &SavePlan,
        mut redistributed: Redistributed,
    ) -> Result<Self, CheckpointError> {
        let calls = PlannerCalls::new(|| planner.name());
        let mut items = Vec::with_capacity(plan.items.len());
        for item in &plan.items {
            // Nothing is written for a part without elements.
            if matches!(&item.data, WriteData::Tensor { region, .. } if region.is_empty()) {
                continue;
            }
            let bytes = match redistributed.take(item)? {
                Some(bytes) => Bytes::Owned(bytes),
                None => calls.run("data", || planner.data(state, item))?,
            };
            let (expected, found) = (item.bytes(), bytes.len() as u64);
            if expected != found {
                let name = item.index.name.clone();
                return Err(calls.error(PlannerProblem::Length { name, expected, found }));
            }
            items.push((item.clone(), bytes));
        }
        Ok(Self { items, done: None })
    }

    /// Items whose tensors are written by the caller.
    pub(crate) fn from_items(items: Vec<(WriteItem, Bytes<'a>)>) -> Self {
        Self { items, done: None }
    }

    pub(super) fn items(&self) -> impl Iterator<Item = (&WriteItem, &Bytes<'a>)> {
        self.items.iter().map(|(item, bytes)| (item, bytes))
    }

    /// Copies items that are borrowed or on a device, up to the budget, and writes the
    /// others at once.
    /// The result can be written after the state has changed. Every rank.
    pub(super) fn stage(
        self,
        context: WriteContext<'_>,
        options: &SaveOptions,
        staging: &mut Staging,
    ) -> Result<WriteBatch<'static>, CheckpointError> {
        let total: u64 = self.items.iter().map(|(_, bytes)| bytes.to_copy()).sum();
        // A file that is written in order is written either now or later.
        let write_now = match context.target.access() {
            WriteAccess::Random(_) => false,
            WriteAccess::OwnFile(_) => total > options.budget,
            WriteAccess::SharedFiles(_) => {
                let mut over_budget = [u64::from(total > options.budget)];
                context.gang.all_reduce(&mut over_budget, ReduceOp::Sum)?;
                over_budget[0] > 0
            }
        };
        if write_now {
            let done = self.write_unsynced(context)?;
            return Ok(WriteBatch { items: Vec::new(), done: Some(done) });
        }
        // Redistributed and transposed tensors are copies already.
        let owned = self.items.iter().map(|(_, bytes)| bytes.owned()).sum();
        let mut budget = options.budget.saturating_sub(owned);
        let (mut staged, mut rest) = (Vec::new(), Vec::new());
        for (item, bytes) in self.items {
            let needed = bytes.to_copy();
            if needed <= budget {
                budget -= needed;
                staged.push((item, bytes));
            } else {
                rest.push((item, bytes));
            }
        }
        let items = staging.copy(staged, options.threads.unwrap_or_else(cores))?;
        let done = match rest.is_empty() {
            true => None,
            false => Some(WriteBatch { items: rest, done: None }.write_unsynced(context)?),
        };
        Ok(WriteBatch { items, done })
    }

    /// Writes the items and makes them durable. Every rank.
    pub(super) fn write(self, context: WriteContext<'_>) -> Result<WriteOutcome, CheckpointError> {
        let outcome = self.write_unsynced(context)?;
        context.target.sync()?;
        Ok(outcome)
    }

    fn write_unsynced(self, context: WriteContext<'_>) -> Result<WriteOutcome, CheckpointError> {
        let WriteContext { target, threads, gang, observer } = context;
        let Self { items, done } = self;
        let (before, sums) = match done {
            Some(done) if items.is_empty() => return Ok(done),
            Some(done) => (done.bytes, done.sums),
            None => (0, target.empty_sums()),
        };
        let bytes: u64 = items.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        observer.begin("writing", bytes);
        for (item, _) in &items {
            target.add_entry(item, &sums);
        }
        let chunks = chunks_of(&items, target);
        match target.access() {
            WriteAccess::Random(files) => {
                let mut chunks = chunks?;
                begin_apart(&mut chunks, gang.rank(), gang.size());
                write_in_place(&chunks, files, &sums, threads.unwrap_or_else(cores), observer)?;
            }
            WriteAccess::OwnFile(files) => {
                write_in_order(&chunks?, files.whole_writer(), &sums, observer)?;
            }
            WriteAccess::SharedFiles(files) => {
                let chunks = collective_result(gang, chunks)?;
                upload_shared(files, &chunks, &sums, gang, observer)?;
            }
        }
        Ok(WriteOutcome { bytes: before + bytes, sums })
    }
}

/// The chunks of all items, in the order of the files.
fn chunks_of<'a>(
    items: &'a [(WriteItem, Bytes<'_>)],
    target: &OpenTarget,
) -> Result<Vec<WriteChunk<'a>>, CheckpointError> {
    let mut chunks = Vec::new();
    for (item, bytes) in items {
        split_into_chunks(item, bytes, target, &mut chunks)?;
    }
    chunks.sort_by_key(|chunk| (chunk.file, chunk.offset));
    Ok(chunks)
}

/// Rotates chunks so that each rank begins in another file: a file system lets one process at
/// a time write to a file.
fn begin_apart(chunks: &mut [WriteChunk<'_>], rank: usize, ranks: usize) {
    let total: u64 = chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum();
    let share = total / ranks as u64 * rank as u64;
    let (mut nearest, mut distance, mut before) = (0, share, 0);
    for (number, pair) in chunks.windows(2).enumerate() {
        before += pair[0].bytes.len() as u64;
        if pair[0].file != pair[1].file && before.abs_diff(share) < distance {
            (nearest, distance) = (number + 1, before.abs_diff(share));
        }
    }
    chunks.rotate_left(nearest);
}

/// Hashes and writes chunks from the first to the last.
fn write_in_order(
    chunks: &[WriteChunk<'_>],
    mut writer: SequentialWriter<'_>,
    sums: &ChunkSums,
    observer: &dyn Observer,
) -> Result<(), CheckpointError> {
    for chunk in chunks {
        let bytes = chunk.bytes.to_host()?;
        sums.add_run(chunk.name, chunk.position, &bytes);
        writer.write(chunk.file, chunk.offset, &bytes)?;
        observer.advance(bytes.len() as u64);
    }
    writer.finish()
}

/// Hashes and writes chunks at their offsets. Those of a device come to the host in
/// groups.
fn write_in_place(
    chunks: &[WriteChunk<'_>],
    files: FolderFiles<'_>,
    sums: &ChunkSums,
    threads: usize,
    observer: &dyn Observer,
) -> Result<(), CheckpointError> {
    let mut rest = chunks;
    while !rest.is_empty() {
        let mut copied = 0;
        let full = rest.iter().position(|chunk| {
            copied += chunk.bytes.to_copy();
            copied > DEVICE_GROUP
        });
        // At least one.
        let (group, later) = rest.split_at(full.unwrap_or(rest.len()).max(1));
        rest = later;
        let group: Result<Vec<HostChunk<'_>>, CheckpointError> =
            group.iter().map(|chunk| Ok(HostChunk { bytes: chunk.bytes.to_host()?, chunk })).collect();
        write_group(&group?, files, sums, threads, observer)?;
    }
    Ok(())
}

/// A chunk with its bytes in host memory.
struct HostChunk<'a> {
    chunk: &'a WriteChunk<'a>,
    bytes: Cow<'a, [u8]>,
}

/// Hashes and writes chunks at their offsets.
///
/// A file system lets one thread at a time write to a file. So one thread
/// writes, in order, and the others hash.
fn write_group(
    chunks: &[HostChunk<'_>],
    files: FolderFiles<'_>,
    sums: &ChunkSums,
    threads: usize,
    observer: &dyn Observer,
) -> Result<(), CheckpointError> {
    let next = AtomicUsize::new(0);
    let hash = || {
        while let Some(HostChunk { chunk, bytes }) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            sums.add_run(chunk.name, chunk.position, bytes);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(chunks.len()) {
            scope.spawn(hash);
        }
        for HostChunk { chunk, bytes } in chunks {
            if threads < 2 {
                sums.add_run(chunk.name, chunk.position, bytes);
            }
            if let Err(error) = files.write_at(chunk.file, chunk.offset, bytes) {
                next.store(chunks.len(), Ordering::Relaxed);
                return Err(error);
            }
            observer.advance(bytes.len() as u64);
        }
        // Once done with writing, help hashing.
        if threads >= 2 {
            hash();
        }
        Ok(())
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Contiguous bytes of a file.
pub(super) struct WriteChunk<'a> {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) bytes: ChunkBytes<'a>,
    /// The tensor that the bytes belong to.
    pub(super) name: &'a str,
    /// The number of their first element in the tensor.
    pub(super) position: u64,
}

/// The bytes of a chunk.
#[derive(Clone, Copy)]
pub(super) enum ChunkBytes<'a> {
    Host(&'a [u8]),
    /// Bytes of a device: from this offset, and how many.
    Device(&'a dyn DeviceBytes, usize, usize),
}

impl<'a> ChunkBytes<'a> {
    fn new(bytes: &'a Bytes<'_>) -> Self {
        match bytes.on_host() {
            Ok(bytes) => Self::Host(bytes),
            Err(device) => Self::Device(device, 0, device.len()),
        }
    }

    pub(super) fn len(self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device(_, _, length) => length,
        }
    }

    /// The bytes that [`to_host`](Self::to_host) copies.
    fn to_copy(self) -> usize {
        match self {
            Self::Host(_) => 0,
            Self::Device(_, _, length) => length,
        }
    }

    /// The first bytes, and the rest.
    fn split_at(self, middle: usize) -> (Self, Self) {
        match self {
            Self::Host(bytes) => {
                let (first, rest) = bytes.split_at(middle);
                (Self::Host(first), Self::Host(rest))
            }
            Self::Device(device, start, length) => {
                (Self::Device(device, start, middle), Self::Device(device, start + middle, length - middle))
            }
        }
    }

    /// The bytes, copied if they are on a device.
    pub(super) fn to_host(self) -> Result<Cow<'a, [u8]>, DeviceReadError> {
        match self {
            Self::Host(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Device(device, start, length) => {
                let mut bytes = vec![0; length];
                device.read(start, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

/// Splits an item into chunks that are contiguous in a file.
fn split_into_chunks<'a>(
    item: &'a WriteItem,
    bytes: &'a Bytes<'_>,
    target: &OpenTarget,
    chunks: &mut Vec<WriteChunk<'a>>,
) -> Result<(), CheckpointError> {
    let name = item.index.name.as_str();
    if target.is_in_frame(name) {
        return Ok(());
    }
    let missing = || PlanError::NoSuchItem { name: name.to_owned() };
    let location = target.location(&item.index).ok_or_else(missing)?;
    let (width, runs) = match &item.data {
        WriteData::Bytes { length, .. } => (1, vec![0..*length as usize]),
        WriteData::Tensor { dtype, shape, region } => {
            let runs = region.runs(shape).map_err(|_| missing())?;
            (dtype.size(), runs.collect())
        }
    };
    let mut rest = ChunkBytes::new(bytes);
    let mut in_shard = 0u64;
    for run in runs {
        let mut position = run.start as u64;
        let (mut run_bytes, after) = rest.split_at(run.len() * width);
        rest = after;
        while run_bytes.len() > 0 {
            let (bytes, more) = run_bytes.split_at(run_bytes.len().min(CHUNK));
            let offset = location.offset + target.offset_in_tensor(position * width as u64, in_shard);
            chunks.push(WriteChunk { file: location.file, offset, bytes, name, position });
            position += (bytes.len() / width) as u64;
            in_shard += bytes.len() as u64;
            run_bytes = more;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_begin_in_different_files() {
        let bytes = [0; 100];
        let order = |sizes: &[(usize, usize)], rank: usize, ranks: usize| -> Vec<usize> {
            let chunk = |(number, &(file, size)): (usize, &(usize, usize))| {
                let (bytes, position) = (ChunkBytes::Host(&bytes[..size]), number as u64);
                WriteChunk { file, offset: 0, bytes, name: "w", position }
            };
            let mut chunks: Vec<WriteChunk<'_>> = sizes.iter().enumerate().map(chunk).collect();
            begin_apart(&mut chunks, rank, ranks);
            chunks.iter().map(|chunk| chunk.position as usize).collect()
        };
        let even = [(0, 10), (0, 10), (1, 10), (1, 10)];
        assert_eq!(order(&even, 0, 2), [0, 1, 2, 3]);
        assert_eq!(order(&even, 1, 2), [2, 3, 0, 1]);
        // The boundary that is nearest.
        let uneven = [(0, 30), (1, 20), (1, 5), (2, 50)];
        assert_eq!(order(&uneven, 1, 4), [1, 2, 3, 0]);
        assert_eq!(order(&uneven, 2, 4), [3, 0, 1, 2]);
        // A single file, and nothing.
        assert_eq!(order(&[(0, 1), (0, 2)], 1, 2), [0, 1]);
        assert!(order(&[], 1, 2).is_empty());
    }
}
