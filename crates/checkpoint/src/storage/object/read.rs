//! Ranged reads straight into the caller's memory, in parallel parts that
//! continue where they were interrupted.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange};
use weightloom_http::{RequestError, Retries, TooSlow};

use super::super::{RemoteProblem, StorageError};
use super::bucket::{Bucket, Sameness};
use super::watch::{Failure, watch};

/// Reads exactly `into.len()` bytes from `offset`.
pub(super) async fn read_at(
    bucket: &Bucket,
    name: &str,
    offset: u64,
    into: &mut [u8],
) -> Result<(), StorageError> {
    let key = bucket.key(name)?;
    let part = bucket.options.read_part.max(1);
    let Some(end) = offset.checked_add(into.len() as u64) else {
        return Err(StorageError::Short { file: name.to_owned(), end: u64::MAX });
    };
    let parts = into.chunks_mut(part).enumerate().map(|(number, into)| {
        let offset = offset + (number * part) as u64;
        PartRead { bucket, name, key: &key, offset, into, filled: 0, end }.read()
    });
    stream::iter(parts).buffer_unordered(bucket.options.reads.max(1)).try_collect().await
}

/// A part of a read.
struct PartRead<'a> {
    bucket: &'a Bucket,
    name: &'a str,
    key: &'a Path,
    offset: u64,
    into: &'a mut [u8],
    /// Bytes received so far.
    filled: usize,
    /// End of the whole read, for messages.
    end: u64,
}

/// Outcome of one request.
enum PartOutcome {
    Complete,
    /// The file ends before the range.
    Short,
    /// The file is another version.
    Changed,
    /// The body is shorter than announced.
    Truncated,
    /// The body is longer than the range.
    Surplus,
    /// The body trickles in.
    Slow(TooSlow),
}

impl PartRead<'_> {
    async fn read(mut self) -> Result<(), StorageError> {
        let (bucket, name) = (self.bucket, self.name);
        let short = StorageError::Short { file: name.to_owned(), end: self.end };
        let mut retries = Retries::new(&bucket.options.retry);
        loop {
            let error = match watch(self.request()).await {
                Ok(PartOutcome::Complete) => return Ok(()),
                Ok(PartOutcome::Short) => return Err(short),
                Ok(PartOutcome::Changed) => return Err(StorageError::Changed { file: name.to_owned() }),
                Ok(PartOutcome::Truncated) => {
                    RequestError::transient(Failure::new(RemoteProblem::Cut, "the response was too short"))
                }
                Ok(PartOutcome::Surplus) => RequestError::transient(Failure::new(
                    RemoteProblem::Malformed,
                    "the response was too long",
                )),
                Ok(PartOutcome::Slow(slow)) => {
                    RequestError::transient(Failure::new(RemoteProblem::Timeout, &slow.to_string()))
                }
                Err(error) => error,
            };
            let (RequestError::Transient { cause: failure, .. } | RequestError::Permanent(failure)) = &error;
            match failure.fault {
                RemoteProblem::Status(416) => return Err(short),
                // The whole file instead of a range: the service has no ranges.
                RemoteProblem::Malformed if failure.status == Some(200) => {
                    return Err(StorageError::NoRanges { file: name.to_owned() });
                }
                _ => {}
            }
            retries.sleep_after(error).await.map_err(|ended| bucket.failed_on("read", name, ended))?;
        }
    }

    /// Requests the missing bytes once.
    async fn request(&mut self) -> Result<PartOutcome, object_store::Error> {
        let missing = &self.into[self.filled..];
        // All bytes may have arrived before the connection failed.
        if missing.is_empty() {
            return Ok(PartOutcome::Complete);
        }
        let start = self.offset + self.filled as u64;
        let range = start..start + missing.len() as u64;
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let response = self.bucket.store.get_opts(self.key, options).await?;
        if self.bucket.compare_version(self.name, &response.meta) == Sameness::Changed {
            return Ok(PartOutcome::Changed);
        }
        if response.range != range {
            return Ok(PartOutcome::Short);
        }
        let mut chunks = response.into_stream();
        let mut speed = self.bucket.options.retry.min_speed.watch();
        loop {
            let asked = Instant::now();
            let Some(chunk) = chunks.try_next().await? else { break };
            let waited = asked.elapsed();
            let missing = &mut self.into[self.filled..];
            let Some(target) = missing.get_mut(..chunk.len()) else { return Ok(PartOutcome::Surplus) };
            target.copy_from_slice(&chunk);
            self.filled += chunk.len();
            if let Err(slow) = speed.record(chunk.len(), waited) {
                return Ok(PartOutcome::Slow(slow));
            }
        }
        match self.filled == self.into.len() {
            true => Ok(PartOutcome::Complete),
            false => Ok(PartOutcome::Truncated),
        }
    }
}
