//! Files that are written piece by piece.
//!
//! A file that fits into one piece goes in one request. Of a longer one, a few
//! pieces travel while the next is being filled; the service puts them
//! together at the end, so that nobody sees half a file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, ObjectMeta, ObjectStoreExt, PutPayload};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::super::{StorageError, Upload};
use super::bucket::{Bucket, Version};
use super::options::ObjectOptions;
use super::patience::{Ended, Patience};
use super::runtime;
use super::watch::{Outlook, watch};

/// So many pieces have the same size, which some services insist on. From
/// there on they grow, since services take no more than 10 000.
const EQUAL_PIECES: usize = 1000;

/// How long an upload that is called off waits for pieces under way.
const LAST_PIECES: Duration = Duration::from_secs(5);

pub(super) struct ObjectUpload {
    bucket: Arc<Bucket>,
    runtime: Handle,
    name: String,
    key: Path,
    /// What is not yet a piece.
    buffer: Vec<u8>,
    length: u64,
    /// Once there is more than one piece.
    pieces: Option<Pieces>,
    /// Why the file cannot be finished.
    failed: Option<StorageError>,
}

/// A file in pieces, of which a few are on their way.
struct Pieces {
    store: Arc<dyn MultipartStore>,
    id: MultipartId,
    sent: usize,
    travelling: VecDeque<JoinHandle<Result<PartId, Ended>>>,
    arrived: Vec<PartId>,
}

impl ObjectUpload {
    pub(super) fn new(bucket: Arc<Bucket>, runtime: Handle, name: &str) -> Result<Self, StorageError> {
        let key = bucket.key(name)?;
        let name = name.to_owned();
        let (buffer, pieces, failed) = (Vec::new(), None, None);
        Ok(Self { bucket, runtime, name, key, buffer, length: 0, pieces, failed })
    }

    fn failure(&self, ended: Ended) -> StorageError {
        self.bucket.failed("write", &self.name, ended)
    }

    /// The size of the piece that is being filled.
    fn piece_size(&self) -> usize {
        let sent = self.pieces.as_ref().map_or(0, |pieces| pieces.sent);
        self.bucket.options.write_part.max(1).saturating_mul(1 + sent / EQUAL_PIECES)
    }

    fn add(&mut self, mut bytes: &[u8]) -> Result<(), StorageError> {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            let size = self.piece_size();
            // Only once there is more: a file of just one piece needs none.
            if self.buffer.len() >= size {
                self.send()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(size - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Sends the buffer off as a piece, when there are not too many under way.
    fn send(&mut self) -> Result<(), StorageError> {
        if self.pieces.is_none() {
            self.pieces = Some(self.begin()?);
        }
        let writes = self.bucket.options.writes.max(1);
        self.settle(writes - 1)?;
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        let payload = PutPayload::from(std::mem::take(&mut self.buffer));
        let (bucket, store) = (Arc::clone(&self.bucket), Arc::clone(&pieces.store));
        let (key, id, number) = (self.key.clone(), pieces.id.clone(), pieces.sent);
        pieces.sent += 1;
        pieces.travelling.push_back(self.runtime.spawn(async move {
            bucket.repeat(|| store.put_part(&key, &id, number, payload.clone())).await
        }));
        Ok(())
    }

    fn begin(&self) -> Result<Pieces, StorageError> {
        let store = self.bucket.parts.as_ref().ok_or_else(|| StorageError::Unsupported {
            action: "write to",
            location: format!("`{}`", self.bucket.shown),
        })?;
        let id = self.bucket.repeat(|| store.create_multipart(&self.key));
        let id = runtime::wait_for(&self.runtime, id).map_err(|ended| self.failure(ended))?;
        let (travelling, arrived) = (VecDeque::new(), Vec::new());
        Ok(Pieces { store: Arc::clone(store), id, sent: 0, travelling, arrived })
    }

    /// Waits until no more than `most` pieces are under way.
    fn settle(&mut self, most: usize) -> Result<(), StorageError> {
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        while pieces.travelling.len() > most {
            let Some(oldest) = pieces.travelling.pop_front() else { break };
            let arrived = runtime::wait_for(&self.runtime, oldest)
                .expect("pieces do not panic, and are called back only when the upload is dropped");
            match arrived {
                Ok(part) => pieces.arrived.push(part),
                Err(ended) => return Err(self.bucket.failed("write", &self.name, ended)),
            }
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), StorageError> {
        if self.pieces.is_none() {
            let payload = PutPayload::from(std::mem::take(&mut self.buffer));
            let put = self.bucket.repeat(|| self.bucket.store.put(&self.key, payload.clone()));
            let put = runtime::wait_for(&self.runtime, put);
            return put.map(|_| ()).map_err(|ended| self.failure(ended));
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        self.settle(0)?;
        let Some(pieces) = &self.pieces else { return Ok(()) };
        let joined = runtime::wait_for(&self.runtime, self.join(pieces));
        joined.map_err(|ended| self.failure(ended))?;
        self.pieces = None;
        Ok(())
    }

    /// Has the service put the pieces together.
    ///
    /// If the answer is lost on the way, the next attempt is refused: there is
    /// no such upload any more, because it is done. Then the file counts, if
    /// it is as long as it must be and not the one that was there before.
    async fn join(&self, pieces: &Pieces) -> Result<(), Ended> {
        let before = self.look().await;
        let mut patience = Patience::new(&self.bucket.options);
        loop {
            let parts = pieces.arrived.clone();
            let failure = match watch(pieces.store.complete_multipart(&self.key, &pieces.id, parts)).await {
                Ok(_) => return Ok(()),
                Err(failure) => failure,
            };
            if patience.attempts() > 0 && failure.outlook == Outlook::Hopeless {
                let now = self.look().await;
                let is_new = now.as_ref().map(seen) != before.as_ref().map(seen);
                if is_new && now.is_some_and(|meta| meta.size == self.length) {
                    return Ok(());
                }
            }
            patience.after(failure).await?;
        }
    }

    /// What is in the file's place.
    async fn look(&self) -> Option<ObjectMeta> {
        self.bucket.repeat(|| self.bucket.store.head(&self.key)).await.ok()
    }
}

/// What tells a file from the one that it replaces.
fn seen(meta: &ObjectMeta) -> (Version, i64) {
    (Version::of(meta), meta.last_modified.timestamp())
}

impl Upload for ObjectUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let added = self.add(bytes);
        self.failed = added.as_ref().err().cloned();
        added
    }

    fn finish(mut self: Box<Self>) -> Result<(), StorageError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let completed = self.complete();
        self.bucket.forget(&self.name);
        completed
    }
}

impl Drop for ObjectUpload {
    /// Takes back the pieces of a file that was not finished.
    fn drop(&mut self) {
        let Some(pieces) = self.pieces.take() else { return };
        let (bucket, key) = (&self.bucket, &self.key);
        runtime::wait_for(&self.runtime, async {
            // A piece that is cut off may arrive after the upload was called
            // off, and stay. So those under way get a little time.
            let late = tokio::time::Instant::now() + LAST_PIECES;
            for mut piece in pieces.travelling {
                if tokio::time::timeout_at(late, &mut piece).await.is_err() {
                    piece.abort();
                }
            }
            // Not for long: the service forgets the pieces in time, and they
            // were never a file.
            let brief = ObjectOptions { retries: bucket.options.retries.min(2), ..bucket.options.clone() };
            let mut patience = Patience::new(&brief);
            while let Err(failure) = watch(pieces.store.abort_multipart(key, &pieces.id)).await {
                if patience.after(failure).await.is_err() {
                    break;
                }
            }
        });
    }
}
