//! Uploads, in parts if necessary.
//!
//! A file that fits into one part takes one request. Of a longer one, a few
//! parts are sent while the next is being filled; the service joins them at the
//! end, so that no reader sees an incomplete file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, ObjectMeta, ObjectStoreExt, PutPayload};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use weightloom_http::{GaveUp, RequestError, Retries, RetryPolicy};

use super::super::{StorageError, Upload};
use super::bucket::{Bucket, Version};
use super::runtime;
use super::watch::{Failure, watch};

/// The first parts have the same size, as some services require. Later ones
/// grow, because services accept at most 10 000.
const EQUAL_PARTS: usize = 1000;

/// Time that an aborted upload waits for parts in flight.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct ObjectUpload {
    bucket: Arc<Bucket>,
    runtime: Handle,
    name: String,
    key: Path,
    /// The part being filled.
    buffer: Vec<u8>,
    length: u64,
    /// Set once there is more than one part.
    parts: Option<Multipart>,
    /// Why the file cannot be finished.
    failed: Option<StorageError>,
}

/// A multipart upload with a few parts in flight.
struct Multipart {
    store: Arc<dyn MultipartStore>,
    id: MultipartId,
    sent: usize,
    in_flight: VecDeque<JoinHandle<Result<PartId, GaveUp<Failure>>>>,
    uploaded: Vec<PartId>,
}

impl ObjectUpload {
    pub(super) fn new(bucket: Arc<Bucket>, runtime: Handle, name: &str) -> Result<Self, StorageError> {
        let key = bucket.key(name)?;
        let name = name.to_owned();
        let (buffer, parts, failed) = (Vec::new(), None, None);
        Ok(Self { bucket, runtime, name, key, buffer, length: 0, parts, failed })
    }

    fn failure(&self, ended: GaveUp<Failure>) -> StorageError {
        self.bucket.failed("write", &self.name, ended)
    }

    /// Size of the part being filled.
    fn part_size(&self) -> usize {
        let sent = self.parts.as_ref().map_or(0, |parts| parts.sent);
        self.bucket.options.write_part.max(1).saturating_mul(1 + sent / EQUAL_PARTS)
    }

    fn add(&mut self, mut bytes: &[u8]) -> Result<(), StorageError> {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            let size = self.part_size();
            // Only once more bytes follow: one full part needs no multipart upload.
            if self.buffer.len() >= size {
                self.send()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(size - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Sends the buffer as a part, after waiting for a free slot.
    fn send(&mut self) -> Result<(), StorageError> {
        if self.parts.is_none() {
            self.parts = Some(self.begin()?);
        }
        let writes = self.bucket.options.writes.max(1);
        self.wait_for_parts(writes - 1)?;
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let payload = PutPayload::from(std::mem::take(&mut self.buffer));
        let (bucket, store) = (Arc::clone(&self.bucket), Arc::clone(&parts.store));
        let (key, id, number) = (self.key.clone(), parts.id.clone(), parts.sent);
        parts.sent += 1;
        parts.in_flight.push_back(self.runtime.spawn(async move {
            bucket.request(|| store.put_part(&key, &id, number, payload.clone())).await
        }));
        Ok(())
    }

    fn begin(&self) -> Result<Multipart, StorageError> {
        let store = self.bucket.parts.as_ref().ok_or_else(|| StorageError::Unsupported {
            action: "write to",
            location: format!("`{}`", self.bucket.shown),
        })?;
        let id = self.bucket.request(|| store.create_multipart(&self.key));
        let id = runtime::wait_for(&self.runtime, id).map_err(|ended| self.failure(ended))?;
        let (in_flight, uploaded) = (VecDeque::new(), Vec::new());
        Ok(Multipart { store: Arc::clone(store), id, sent: 0, in_flight, uploaded })
    }

    /// Waits until at most `limit` parts are in flight.
    fn wait_for_parts(&mut self, limit: usize) -> Result<(), StorageError> {
        let Some(parts) = &mut self.parts else { return Ok(()) };
        while parts.in_flight.len() > limit {
            let Some(oldest) = parts.in_flight.pop_front() else { break };
            let uploaded = runtime::wait_for(&self.runtime, oldest)
                .expect("parts do not panic, and are aborted only when the upload is dropped");
            match uploaded {
                Ok(part) => parts.uploaded.push(part),
                Err(ended) => return Err(self.bucket.failed("write", &self.name, ended)),
            }
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), StorageError> {
        if self.parts.is_none() {
            let payload = PutPayload::from(std::mem::take(&mut self.buffer));
            let put = self.bucket.request(|| self.bucket.store.put(&self.key, payload.clone()));
            let put = runtime::wait_for(&self.runtime, put);
            return put.map(|_| ()).map_err(|ended| self.failure(ended));
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        self.wait_for_parts(0)?;
        let Some(parts) = &self.parts else { return Ok(()) };
        let joined = runtime::wait_for(&self.runtime, self.join(parts));
        joined.map_err(|ended| self.failure(ended))?;
        self.parts = None;
        Ok(())
    }

    /// Joins the parts.
    ///
    /// If the response is lost, the next attempt fails, because the upload no
    /// longer exists: it is complete. Then the file counts if it has the right
    /// length and is not the one from before.
    async fn join(&self, parts: &Multipart) -> Result<(), GaveUp<Failure>> {
        let before = self.head().await;
        let mut retries = Retries::new(&self.bucket.options.retry);
        loop {
            let uploaded = parts.uploaded.clone();
            let error = match watch(parts.store.complete_multipart(&self.key, &parts.id, uploaded)).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if retries.attempts() > 0 && matches!(error, RequestError::Permanent(_)) {
                let now = self.head().await;
                let is_new = now.as_ref().map(version) != before.as_ref().map(version);
                if is_new && now.is_some_and(|meta| meta.size == self.length) {
                    return Ok(());
                }
            }
            retries.sleep_after(error).await?;
        }
    }

    /// Metadata of the file at the key, if there is one.
    async fn head(&self) -> Option<ObjectMeta> {
        self.bucket.request(|| self.bucket.store.head(&self.key)).await.ok()
    }
}

/// Distinguishes a file from the one it replaces.
fn version(meta: &ObjectMeta) -> (Version, i64) {
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
        self.bucket.forget_version(&self.name);
        completed
    }
}

impl Drop for ObjectUpload {
    /// Aborts an unfinished upload.
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let (bucket, key) = (&self.bucket, &self.key);
        runtime::wait_for(&self.runtime, async {
            // A part that is cut off may arrive after the abort, and stay. So
            // parts in flight get a little time.
            let deadline = tokio::time::Instant::now() + ABORT_TIMEOUT;
            for mut part in parts.in_flight {
                if tokio::time::timeout_at(deadline, &mut part).await.is_err() {
                    part.abort();
                }
            }
            // Few retries: services remove such parts after some time, and no
            // reader ever sees them.
            let retry = &bucket.options.retry;
            let brief = RetryPolicy { max_retries: retry.max_retries.min(2), ..retry.clone() };
            let _ = brief.run(|| watch(parts.store.abort_multipart(key, &parts.id))).await;
        });
    }
}
