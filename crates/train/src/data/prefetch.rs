//! Preparing batches on a thread.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::error::DataError;
use super::loader::Loader;
use super::origins::BatchDocuments;
use super::row::Batch;
use super::state::{DataState, Dataset, Position};

/// Batches in the queue, besides the one in preparation.
const QUEUED: usize = 1;

/// A loader on a separate thread, which ends on drop.
pub struct Prefetched {
    /// Dropped first, which ends the thread.
    receiver: Option<Receiver<Prepared>>,
    thread: Option<JoinHandle<()>>,
    position: Position,
    /// The documents of the last returned batch.
    documents: BatchDocuments,
    dataset: Arc<Dataset>,
    /// The end of the data, or the error that ended it.
    end: Option<Result<(), DataError>>,
}

/// A batch, and the position after it.
struct Prepared {
    batch: Result<Option<Batch>, DataError>,
    documents: BatchDocuments,
    position: Position,
}

impl Prefetched {
    pub(super) fn new(loader: Loader, rows: usize, own: Vec<Range<usize>>) -> Result<Self, DataError> {
        let (position, dataset) = (loader.position(), loader.dataset());
        let (sender, receiver) = sync_channel(QUEUED);
        let thread = std::thread::Builder::new()
            .name("weightloom-data".to_owned())
            .spawn(move || prepare(loader, rows, &own, &sender))
            .map_err(|error| DataError::Thread { message: error.to_string() })?;
        let documents = BatchDocuments::default();
        Ok(Self { receiver: Some(receiver), thread: Some(thread), position, documents, dataset, end: None })
    }

    /// The next batch, or `None` at the end. Repeats an error.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        if let Some(end) = &self.end {
            return end.clone().map(|()| None);
        }
        let prepared = self.receiver.as_ref().and_then(|receiver| receiver.recv().ok());
        let Some(Prepared { batch, documents, position }) = prepared else {
            self.end = Some(Err(DataError::ThreadStopped));
            return Err(DataError::ThreadStopped);
        };
        match &batch {
            Ok(Some(_)) => (self.position, self.documents) = (position, documents),
            Ok(None) => self.end = Some(Ok(())),
            Err(error) => self.end = Some(Err(error.clone())),
        }
        batch
    }

    /// The documents of the last returned batch, over all ranks.
    pub fn documents(&self) -> &BatchDocuments {
        &self.documents
    }

    /// The position after the last returned batch, whatever is prepared since.
    pub fn state(&self) -> DataState {
        DataState { position: self.position, dataset: Dataset::clone(&self.dataset) }
    }
}

/// Prepares batches until the end of the data or of the receiver.
fn prepare(mut loader: Loader, rows: usize, own: &[Range<usize>], sender: &SyncSender<Prepared>) {
    loop {
        let before = loader.position();
        let batch = loader.next_batch(rows, own);
        let last = !matches!(batch, Ok(Some(_)));
        let position = loader.position();
        let documents = loader.documents_between(before, position);
        if sender.send(Prepared { batch, documents, position }).is_err() || last {
            return;
        }
    }
}

impl Drop for Prefetched {
    fn drop(&mut self) {
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            // It ends after the current batch. `next_batch` reports a panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_stopped_thread_is_an_error() {
        let (sender, receiver) = sync_channel(QUEUED);
        drop(sender);
        let dataset = Arc::new(Dataset::new(BTreeMap::new(), [].iter()));
        let position = Position::default();
        let documents = BatchDocuments::default();
        let mut ahead =
            Prefetched { receiver: Some(receiver), thread: None, position, documents, dataset, end: None };
        for _ in 0..2 {
            assert_eq!(ahead.next_batch(), Err(DataError::ThreadStopped));
        }
    }
}
