//! Transfers a file from a server into a staging file: parallel ranges,
//! retries, and a check of the hash at the end.
//!
//! The first response shows whether the server supports ranges. If it does,
//! threads take missing ranges until none is left; each keeps its range
//! through all retries and continues at the byte it has reached. Otherwise the
//! whole file comes through one connection, from its start.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use reqwest::Url;
use weightloom_http::Retries;
use weightloom_machine::free_space;

use super::byte_ranges::MissingRanges;
use super::digest::Digest;
use super::error::{FetchError, TransferError};
use super::network::{
    Abort, Cancellation, FileRequest, FileResponse, Network, RedirectCache, RequestError, Subject,
};
use super::observer::FetchObserver;
use super::response::{self, Body, Validator};
use super::staging::{Identity, StagingFile, StagingWriter};

/// A file to download.
pub(super) struct Job<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) url: Url,
    /// The length, if known beforehand.
    pub(super) size: Option<u64>,
    /// The hash, if known beforehand.
    pub(super) digest: Option<Digest>,
    /// Path of the incomplete file.
    pub(super) staging: PathBuf,
    /// Path of the record of its downloaded ranges.
    pub(super) record: PathBuf,
    pub(super) identity: Identity,
    /// The version that need not be downloaded again.
    pub(super) unless: Option<Validator>,
}

/// Outcome of a transfer.
pub(super) enum Transferred {
    /// All bytes arrived, and the hash is right.
    Complete { staging: Box<StagingFile>, digest: Digest },
    /// The server still has the version in the cache.
    Unchanged,
}

/// Downloads a file into its staging file and verifies it. A file with the
/// wrong hash is downloaded once more.
pub(super) fn transfer(
    network: &Network<'_>,
    job: &Job<'_>,
    observer: &dyn FetchObserver,
) -> Result<Transferred, FetchError> {
    let file = job.subject.name();
    let every = network.settings.record_every;
    let staging = StagingFile::open(job.staging.clone(), job.record.clone(), job.size, job.identity, every)?;
    observer.started(file, staging.size(), staging.total());
    let mut wrong = None;
    for _ in 0..2 {
        let filled = fill(network, job, &staging, observer);
        if filled.is_err() && staging.total() > 0 {
            // The first error is more useful than a second one.
            let _ = staging.save();
        }
        if filled? == Filled::Unchanged {
            return Ok(Transferred::Unchanged);
        }
        staging.sync()?;
        let found = match &job.digest {
            Some(expected) => expected.same_kind_of_file(staging.path())?,
            None => Digest::sha256_of_file(staging.path())?,
        };
        match &job.digest {
            Some(expected) if *expected != found => {
                let (file, expected) = (file.to_owned(), expected.hex().to_owned());
                wrong = Some(FetchError::WrongHash { file, expected, found: found.hex().to_owned() });
                let lost = staging.restart(job.size)?;
                observer.lost(job.subject.name(), lost);
            }
            _ => return Ok(Transferred::Complete { staging: Box::new(staging), digest: found }),
        }
    }
    Err(wrong.expect("the loop returns early unless the hash was wrong"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    Complete,
    Unchanged,
}

/// Downloads the missing bytes.
fn fill(
    network: &Network<'_>,
    job: &Job<'_>,
    staging: &StagingFile,
    observer: &dyn FetchObserver,
) -> Result<Filled, FetchError> {
    let name = job.subject.name();
    let cancellation = Cancellation::new(observer, name);
    let redirect = RedirectCache::default();
    let download = Download { network, job, staging, cancellation: &cancellation, redirect };
    let mut retries = Retries::new(&network.settings.retry);
    let mut best = staging.total();
    loop {
        let error = match download.run() {
            Ok(filled) => return Ok(filled),
            Err(error) => error,
        };
        if matches!(error, RequestError::Transient { cause: TransferError::Changed, .. }) {
            observer.lost(name, staging.restart(job.size)?);
        }
        // A server that sends the start again and again makes no progress.
        if staging.total() > best {
            best = staging.total();
            if !is_slow(&error) {
                retries.record_progress();
            }
        }
        cancellation.wait_to_retry(&mut retries, error).map_err(|abort| abort.into_error(name))?;
    }
}

/// One file being downloaded.
struct Download<'a> {
    network: &'a Network<'a>,
    job: &'a Job<'a>,
    staging: &'a StagingFile,
    cancellation: &'a Cancellation<'a>,
    redirect: RedirectCache,
}

impl Download<'_> {
    /// Downloads until the file is complete or a request fails.
    fn run(&self) -> Result<Filled, RequestError> {
        let range_bytes = self.network.settings.range_bytes.max(1);
        let requested = match self.staging.missing(range_bytes) {
            Some(mut missing) => {
                let Some(requested) = missing.next() else {
                    let size = self.staging.size().unwrap_or(0);
                    self.staging.writer()?.set_size(size)?;
                    return Ok(Filled::Complete);
                };
                requested
            }
            // The first response states the length.
            None => 0..range_bytes,
        };
        self.require_space(self.staging.size())?;
        let response = self.send(&requested)?;
        match self.check(&response, &requested)? {
            Body::Unchanged => Ok(Filled::Unchanged),
            Body::Empty => {
                self.staging.writer()?.set_size(0)?;
                Ok(Filled::Complete)
            }
            Body::Whole { length } => self.download_whole(response, length),
            Body::Range { range, .. } => {
                if let Some(ranges) = self.staging.missing(range_bytes) {
                    self.download_ranges(ranges, (response, range))?;
                }
                self.finish_ranges()
            }
        }
    }

    /// Servers may send less than the requested ranges; then bytes are missing.
    fn finish_ranges(&self) -> Result<Filled, RequestError> {
        let size = self.staging.size().unwrap_or(0);
        match self.staging.total() == size {
            true => {
                self.staging.writer()?.set_size(size)?;
                Ok(Filled::Complete)
            }
            false => Err(interrupted("bytes are missing".to_owned())),
        }
    }

    fn send(&self, range: &Range<u64>) -> Result<FileResponse, RequestError> {
        let request = FileRequest {
            subject: self.job.subject,
            url: &self.job.url,
            range: Some(range.clone()),
            // Bytes of a newer version on disk rule out the older one.
            unless: self.job.unless.as_ref().filter(|_| self.staging.total() == 0),
            redirect: Some(&self.redirect),
        };
        self.network.send(&request, self.cancellation)
    }

    /// Compares a response with the request and the known file.
    fn check(&self, response: &FileResponse, requested: &Range<u64>) -> Result<Body, RequestError> {
        let validator = match self.job.identity {
            Identity::Version => Validator::of(response.headers()),
            Identity::Hash => Validator::default(),
        };
        if response.status() != 304 && self.staging.validator().contradicts(&validator) {
            return Err(RequestError::transient(TransferError::Changed));
        }
        let known = self.staging.size();
        let body = response::body(response.status(), response.headers(), requested, known);
        let body = body.map_err(|error| match error {
            // A length known only from an earlier response may change.
            TransferError::Length { expected, .. } if self.job.size.is_none() && known == Some(expected) => {
                TransferError::Changed
            }
            error => error,
        });
        let body = body.map_err(RequestError::transient)?;
        let total = match &body {
            Body::Range { total, .. } => Some(*total),
            Body::Whole { length } => *length,
            Body::Empty | Body::Unchanged => return Ok(body),
        };
        self.staging.agree(total, &validator).map_err(RequestError::transient)?;
        self.require_space(total)?;
        Ok(body)
    }

    /// Makes sure that the disk has space for what is missing of a file.
    fn require_space(&self, size: Option<u64>) -> Result<(), RequestError> {
        let needed = size.unwrap_or(0).saturating_sub(self.staging.total());
        match self.staging.path().parent().and_then(free_space) {
            Some(free) if needed > free => {
                let what = self.job.subject.name().to_owned();
                Err(FetchError::NoSpace { what, needed, free }.into())
            }
            _ => Ok(()),
        }
    }

    /// Downloads all bytes from a server without ranges.
    fn download_whole(&self, response: FileResponse, length: Option<u64>) -> Result<Filled, RequestError> {
        let (size, validator) = (self.staging.size(), self.staging.validator());
        let lost = self.staging.restart(size)?;
        if lost > 0 {
            self.cancellation.observer.lost(self.job.subject.name(), lost);
        }
        self.staging.agree(length, &validator).map_err(RequestError::transient)?;
        let mut writer = self.staging.writer()?;
        let mut end = 0;
        self.write_body(response, &mut writer, 0..length.unwrap_or(u64::MAX), &mut end)?;
        match length {
            Some(length) if end < length => Err(interrupted(format!("received {end} of {length} bytes"))),
            _ => {
                writer.set_size(end)?;
                Ok(Filled::Complete)
            }
        }
    }

    /// Downloads ranges in parallel. The first has its response already.
    fn download_ranges(
        &self,
        mut ranges: MissingRanges,
        first: (FileResponse, Range<u64>),
    ) -> Result<(), RequestError> {
        let head = ranges.next();
        let others = self.network.settings.connections.max(1) - 1;
        let threads = ranges.count_up_to(others) + 1;
        let ranges = Mutex::new(ranges);
        let next = || ranges.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = |mut range: Option<Range<u64>>, mut response: Option<(FileResponse, Range<u64>)>| {
            let worked = (|| {
                let mut writer = self.staging.writer()?;
                while let Some(range) = range.take().or_else(next) {
                    self.download_range(range, response.take(), &mut writer)?;
                }
                Ok(())
            })();
            if worked.is_err() {
                self.cancellation.stop();
            }
            worked
        };
        let work = &work;
        let ended: Vec<Result<(), RequestError>> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(move || work(None, None))).collect();
            let mut ended = vec![work(head, Some(first))];
            ended.extend(others.into_iter().map(|thread| match thread.join() {
                Ok(worked) => worked,
                Err(panic) => std::panic::resume_unwind(panic),
            }));
            ended
        });
        self.cancellation.reset();
        // Report the failure, not the threads that it stopped.
        let failed = ended.into_iter().filter_map(Result::err);
        match failed.min_by_key(|error| matches!(error, RequestError::Permanent(Abort::Stopped))) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Downloads one range, with retries.
    fn download_range(
        &self,
        range: Range<u64>,
        mut response: Option<(FileResponse, Range<u64>)>,
        writer: &mut StagingWriter<'_>,
    ) -> Result<(), RequestError> {
        let mut retries = Retries::new(&self.network.settings.retry);
        let mut position = range.start;
        while position < range.end {
            let (reached, error) = self.download_range_once(position..range.end, response.take(), writer);
            if reached > position {
                position = reached;
                // A trickle does not count; else it would never be given up.
                if !error.as_ref().is_some_and(is_slow) {
                    retries.record_progress();
                }
            }
            match error {
                None => {}
                // These concern the whole file.
                Some(
                    error @ RequestError::Transient {
                        cause: TransferError::Changed | TransferError::RangeIgnored,
                        ..
                    },
                ) => return Err(error),
                Some(error) => self.cancellation.wait_to_retry(&mut retries, error)?,
            }
        }
        Ok(())
    }

    /// Returns the position that one response reached, and why it ended early.
    fn download_range_once(
        &self,
        wanted: Range<u64>,
        response: Option<(FileResponse, Range<u64>)>,
        writer: &mut StagingWriter<'_>,
    ) -> (u64, Option<RequestError>) {
        let response = response.map_or_else(
            || {
                let response = self.send(&wanted)?;
                match self.check(&response, &wanted)? {
                    Body::Range { range, .. } => Ok((response, range)),
                    _ => Err(RequestError::transient(TransferError::RangeIgnored)),
                }
            },
            Ok,
        );
        let (response, range) = match response {
            Ok(response) => response,
            Err(error) => return (wanted.start, Some(error)),
        };
        let mut reached = range.start;
        match self.write_body(response, writer, range.clone(), &mut reached) {
            Ok(()) if reached < range.end => {
                let (received, length) = (reached - range.start, range.end - range.start);
                (reached, Some(interrupted(format!("received {received} of {length} bytes"))))
            }
            ended => (reached, ended.err()),
        }
    }

    /// Writes a body to its position in the file and advances `position`.
    fn write_body(
        &self,
        mut response: FileResponse,
        writer: &mut StagingWriter<'_>,
        range: Range<u64>,
        position: &mut u64,
    ) -> Result<(), RequestError> {
        *position = range.start;
        let mut speed = self.network.settings.retry.min_speed.watch();
        loop {
            let asked = Instant::now();
            let Some(bytes) = self.network.next(&mut response, self.cancellation)? else { break };
            let waited = asked.elapsed();
            self.cancellation.check()?;
            let bytes = bytes.as_ref();
            if bytes.len() as u64 > range.end - *position {
                let claimed = *position + bytes.len() as u64;
                return Err(RequestError::transient(TransferError::Length { expected: range.end, claimed }));
            }
            writer.write_at(*position, bytes)?;
            *position += bytes.len() as u64;
            self.cancellation.observer.progress(self.job.subject.name(), bytes.len() as u64);
            // The last bytes of a range need no speed.
            if *position < range.end {
                speed.record(bytes.len(), waited).map_err(|slow| RequestError::transient(slow.into()))?;
            }
        }
        Ok(())
    }
}

fn is_slow(error: &RequestError) -> bool {
    matches!(error, RequestError::Transient { cause: TransferError::Slow { .. }, .. })
}

fn interrupted(cause: String) -> RequestError {
    RequestError::transient(TransferError::Interrupted { cause })
}
