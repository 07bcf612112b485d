//! Ranged reads straight into the caller's memory, in pieces that travel at
//! the same time and go on where they were cut off.

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange};

use super::super::{RemoteProblem, StorageError};
use super::bucket::{Bucket, Sameness};
use super::patience::Patience;
use super::watch::{Failure, watch};

/// Reads exactly `into.len()` bytes from `offset` on.
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
    let pieces = into.chunks_mut(part).enumerate().map(|(number, into)| {
        let offset = offset + (number * part) as u64;
        Piece { bucket, name, key: &key, offset, into, filled: 0, end }.read()
    });
    stream::iter(pieces).buffer_unordered(bucket.options.reads.max(1)).try_collect().await
}

/// A part of a read.
struct Piece<'a> {
    bucket: &'a Bucket,
    name: &'a str,
    key: &'a Path,
    offset: u64,
    into: &'a mut [u8],
    /// As much of it is there.
    filled: usize,
    /// Where the whole read ends, for messages.
    end: u64,
}

/// How an answer ended.
enum Answer {
    Complete,
    /// The file ends before the range does.
    Short,
    /// It is a part of another file.
    Changed,
    /// The body ended early, though in good order.
    Cut,
    /// The body goes on behind the range.
    Surplus,
}

impl Piece<'_> {
    async fn read(mut self) -> Result<(), StorageError> {
        let (bucket, name) = (self.bucket, self.name);
        let short = StorageError::Short { file: name.to_owned(), end: self.end };
        let mut patience = Patience::new(&bucket.options);
        loop {
            let failure = match watch(self.ask()).await {
                Ok(Answer::Complete) => return Ok(()),
                Ok(Answer::Short) => return Err(short),
                Ok(Answer::Changed) => return Err(StorageError::Changed { file: name.to_owned() }),
                Ok(Answer::Cut) => Failure::of(RemoteProblem::Cut, "the answer was too short"),
                Ok(Answer::Surplus) => Failure::of(RemoteProblem::Malformed, "the answer was too long"),
                Err(failure) if failure.fault == RemoteProblem::Status(416) => return Err(short),
                // All of it instead of a part: no part will ever come.
                Err(failure) if failure.fault == RemoteProblem::Malformed && failure.status == Some(200) => {
                    return Err(StorageError::NoRanges { file: name.to_owned() });
                }
                Err(failure) => failure,
            };
            patience.after(failure).await.map_err(|ended| bucket.failed_on("read", name, ended))?;
        }
    }

    /// Asks once for what is missing.
    async fn ask(&mut self) -> Result<Answer, object_store::Error> {
        let missing = &self.into[self.filled..];
        // All may be there already, if only its connection ended badly.
        if missing.is_empty() {
            return Ok(Answer::Complete);
        }
        let start = self.offset + self.filled as u64;
        let range = start..start + missing.len() as u64;
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let answer = self.bucket.store.get_opts(self.key, options).await?;
        if self.bucket.still(self.name, &answer.meta) == Sameness::Changed {
            return Ok(Answer::Changed);
        }
        if answer.range != range {
            return Ok(Answer::Short);
        }
        let mut chunks = answer.into_stream();
        while let Some(chunk) = chunks.try_next().await? {
            let missing = &mut self.into[self.filled..];
            let Some(place) = missing.get_mut(..chunk.len()) else { return Ok(Answer::Surplus) };
            place.copy_from_slice(&chunk);
            self.filled += chunk.len();
        }
        Ok(if self.filled == self.into.len() { Answer::Complete } else { Answer::Cut })
    }
}
