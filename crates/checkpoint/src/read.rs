//! The read engine: regions → byte extents → coalesced, parallel reads →
//! decoding → destination buffers.
//!
//! A request is split into jobs, each of which owns a contiguous part of the
//! destination, so that threads need neither locks nor `unsafe`. Within a job,
//! extents of the file that are near each other are read at once. Long extents
//! that need no decoding are read directly into the destination.

mod extents;
mod job;
mod segment;

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weightloom_layout::{DType, Region, RegionError};

use crate::chunk_sums::ChunkSums;
use crate::error::CheckpointError;
use crate::formats::Source;
use crate::index::TensorEntry;
use crate::observer::Observer;
use crate::storage::ReadMode;
pub use extents::{Extent, extents};
use job::{Job, Jobs};
pub(crate) use segment::{Order, order};

/// A region of a tensor to read, and the buffer for it.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The tensor.
    pub entry: &'a TensorEntry,
    /// Its name, for messages.
    pub name: &'a str,
    /// The region to read.
    pub region: Region,
    /// The dtype to read it as.
    pub dtype: DType,
    /// The destination, row-major, exactly as long as the region.
    pub into: &'a mut [u8],
}

/// How to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The most memory for bytes in flight, over all threads.
    pub budget: usize,
    /// Threads that read; by default one per core, and 16 for remote storage.
    pub threads: Option<usize>,
    /// How files of a folder are read; by default chosen by size.
    pub mode: Option<ReadMode>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { budget: 1 << 30, threads: None, mode: None }
    }
}

/// Statistics of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Bytes read from storage.
    pub read: u64,
    /// Bytes written to destinations.
    pub delivered: u64,
    /// Requests to storage.
    pub requests: u64,
}

impl std::ops::AddAssign for ReadReport {
    fn add_assign(&mut self, other: Self) {
        self.read += other.read;
        self.delivered += other.delivered;
        self.requests += other.requests;
    }
}

/// Why a read request is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ReadRequestError {
    #[error("cannot read from `{tensor}`: {problem}")]
    Region { tensor: String, problem: RegionError },
    #[error(
        "cannot read {region} of `{tensor}` as {dtype}: it takes {expected} bytes, and the buffer has {found}"
    )]
    BufferLength { tensor: String, region: Region, dtype: DType, expected: usize, found: usize },
}

/// The most bytes that are read at once. Less is slower, even where hashing
/// would profit from a warmer cache.
const STRETCH: usize = 4 << 20;

/// Reads regions into their destinations.
pub fn read(
    source: &Source,
    wants: Vec<ReadRequest<'_>>,
    options: &ReadOptions,
    observer: &dyn Observer,
) -> Result<ReadReport, CheckpointError> {
    read_verified(source, wants, options, None, observer)
}

/// Reads regions and adds their elements to checksums.
pub(crate) fn read_verified(
    source: &Source,
    wants: Vec<ReadRequest<'_>>,
    options: &ReadOptions,
    sums: Option<&ChunkSums>,
    observer: &dyn Observer,
) -> Result<ReadReport, CheckpointError> {
    let threads = options.threads.unwrap_or_else(|| default_threads(source)).max(1);
    // A thread holds up to two buffers: stored bytes, and decoded elements.
    let stretch = (options.budget / threads / 2).clamp(4096, STRETCH);
    let mut jobs = Vec::new();
    let mut total = 0;
    for want in wants {
        check(&want)?;
        total += want.into.len() as u64;
        jobs.push(Job::of(want));
    }
    let mode = options.mode.unwrap_or_else(|| default_mode(source, total));
    observer.begin("reading", total);
    let pool = Pool {
        source,
        stretch,
        mode,
        sums,
        observer,
        read: AtomicU64::new(0),
        requests: AtomicU64::new(0),
        delivered: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    let queue = Mutex::new(Jobs::new(jobs, stretch));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    pool.drain(threads, next)
}

fn default_threads(source: &Source) -> usize {
    match source.storage.folder() {
        Some(_) => std::thread::available_parallelism().map_or(1, usize::from),
        // Remote reads are bound by latency.
        None => 16,
    }
}

/// Reads through the page cache, unless the read is so large that it would
/// evict everything else.
fn default_mode(source: &Source, total: u64) -> ReadMode {
    // Not worth looking up the available memory.
    if total < 1 << 32 || source.storage.folder().is_none() {
        return ReadMode::Cached;
    }
    match weightloom_machine::memory() {
        Some(memory) if total > memory.available / 2 => ReadMode::Direct,
        _ => ReadMode::Cached,
    }
}

fn check(want: &ReadRequest<'_>) -> Result<(), ReadRequestError> {
    want.region
        .check_inside(&want.entry.shape)
        .map_err(|problem| ReadRequestError::Region { tensor: want.name.to_owned(), problem })?;
    let expected = want.region.volume() * want.dtype.size();
    if want.into.len() != expected {
        return Err(ReadRequestError::BufferLength {
            tensor: want.name.to_owned(),
            region: want.region.clone(),
            dtype: want.dtype,
            expected,
            found: want.into.len(),
        });
    }
    Ok(())
}

/// State shared by the threads of one read.
struct Pool<'a> {
    source: &'a Source,
    stretch: usize,
    mode: ReadMode,
    sums: Option<&'a ChunkSums>,
    observer: &'a dyn Observer,
    read: AtomicU64,
    requests: AtomicU64,
    delivered: AtomicU64,
    failed: AtomicBool,
}

impl Pool<'_> {
    /// Runs jobs until there are none, or one fails.
    fn drain<'j>(
        &self,
        threads: usize,
        next: impl Fn() -> Option<Job<'j>> + Sync,
    ) -> Result<ReadReport, CheckpointError> {
        let work = || {
            let mut staging = Vec::new();
            while !self.failed.load(Ordering::Relaxed) {
                let Some(mut job) = next() else { break };
                let delivered = job.into.len() as u64;
                let outcome = match self.observer.is_cancelled() {
                    true => Err(CheckpointError::Cancelled),
                    false => job.run(self, &mut staging),
                };
                if let Err(error) = outcome {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
                self.delivered.fetch_add(delivered, Ordering::Relaxed);
                self.observer.advance(delivered);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut outcome = work();
            for other in others {
                let theirs = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                outcome = outcome.and(theirs);
            }
            outcome
        })?;
        Ok(ReadReport {
            read: self.read.load(Ordering::Relaxed),
            delivered: self.delivered.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
        })
    }

    /// Reads bytes of one of the index's files.
    fn fetch(&self, file: crate::index::FileId, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        self.read.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let name = &self.source.index.file(file).name;
        Ok(self.source.storage.read_with(self.mode, name, offset, into)?)
    }
}
