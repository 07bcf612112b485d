//! The engine: wanted regions → byte extents → coalesced, parallel reads →
//! decoding → destination buffers.
//!
//! A want is cut into jobs, each of which fills a contiguous stretch of its
//! destination and owns it alone, so that threads need no locks and no
//! `unsafe`. Within a job, stretches of the file that are near each other are
//! read at once. Long stretches that need no decoding are read straight into
//! their destination.

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

/// A region of a tensor, and where its elements shall go.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The tensor.
    pub entry: &'a TensorEntry,
    /// Its name, for messages.
    pub name: &'a str,
    /// Which part of it.
    pub region: Region,
    /// As which type.
    pub dtype: DType,
    /// Where to: as many bytes as the region takes, row-major.
    pub into: &'a mut [u8],
}

/// How to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The most memory for bytes on their way, over all threads.
    pub budget: usize,
    /// Threads that read; by default, one for each core, and more for places
    /// that are far away.
    pub threads: Option<usize>,
    /// How bytes come from a filesystem; by default what suits it.
    pub mode: Option<ReadMode>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { budget: 1 << 30, threads: None, mode: None }
    }
}

/// What a read did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Bytes that were asked of the storage.
    pub read: u64,
    /// Bytes that were delivered.
    pub delivered: u64,
    /// How often the storage was asked.
    pub requests: u64,
}

impl std::ops::AddAssign for ReadReport {
    fn add_assign(&mut self, other: Self) {
        self.read += other.read;
        self.delivered += other.delivered;
        self.requests += other.requests;
    }
}

/// A want that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ReadRequestError {
    /// A region that the tensor does not have.
    #[error("`{tensor}` has no such part: {source}")]
    Region { tensor: String, source: RegionError },
    /// A buffer of the wrong size.
    #[error("{region} of `{tensor}` as {dtype} takes {expected} bytes, but there is room for {found}")]
    Room { tensor: String, region: Region, dtype: DType, expected: usize, found: usize },
}

/// Bytes of one stretch that is read at once, at most and unless the budget is
/// smaller. Less makes reading slower, even where what was read is hashed
/// while it is still in a cache.
const STRETCH: usize = 4 << 20;

/// Reads wanted regions into their destinations.
pub fn read(
    source: &Source,
    wants: Vec<ReadRequest<'_>>,
    options: &ReadOptions,
    observer: &dyn Observer,
) -> Result<ReadReport, CheckpointError> {
    read_verified(source, wants, options, None, observer)
}

/// Reads wanted regions, and adds what was read to sums.
pub(crate) fn read_verified(
    source: &Source,
    wants: Vec<ReadRequest<'_>>,
    options: &ReadOptions,
    sums: Option<&ChunkSums>,
    observer: &dyn Observer,
) -> Result<ReadReport, CheckpointError> {
    let threads = options.threads.unwrap_or_else(|| default_threads(source)).max(1);
    // A thread holds up to two stretches: as stored, and on the way to another
    // type.
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
        // Far away, waiting is what takes time.
        None => 16,
    }
}

/// Through the cache, unless so much is wanted of a filesystem that the cache
/// could not hold it and would only push out what others need.
fn default_mode(source: &Source, total: u64) -> ReadMode {
    let memory = || -> Option<u64> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
    };
    // Nobody looks for memory to read a little.
    if total < 1 << 32 || source.storage.folder().is_none() {
        return ReadMode::Cached;
    }
    match memory() {
        Some(memory) if total > memory / 2 => ReadMode::Direct,
        _ => ReadMode::Cached,
    }
}

fn check(want: &ReadRequest<'_>) -> Result<(), ReadRequestError> {
    want.region
        .check_inside(&want.entry.shape)
        .map_err(|source| ReadRequestError::Region { tensor: want.name.to_owned(), source })?;
    let expected = want.region.volume() * want.dtype.size();
    if want.into.len() != expected {
        return Err(ReadRequestError::Room {
            tensor: want.name.to_owned(),
            region: want.region.clone(),
            dtype: want.dtype,
            expected,
            found: want.into.len(),
        });
    }
    Ok(())
}

/// What the threads of one read share.
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
                if let Err(error) = job.run(self, &mut staging) {
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
