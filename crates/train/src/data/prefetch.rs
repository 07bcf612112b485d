//! Batches that are prepared while others are computed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::error::DataError;
use super::loader::Loader;
use super::row::Batch;
use super::state::{DataState, Dataset, Position};

/// Batches that may wait to be taken, besides the one in the making.
const WAITING: usize = 1;

/// A loader on a thread of its own. Dropping it ends the thread.
pub struct Prefetched {
    /// None once it is dropped, which tells the thread to end.
    receiver: Option<Receiver<Prepared>>,
    thread: Option<JoinHandle<()>>,
    position: Position,
    dataset: Arc<Dataset>,
    /// What came instead of a batch.
    end: Option<Result<(), DataError>>,
}

/// A batch, and where the loader stands after it.
struct Prepared {
    batch: Result<Option<Batch>, DataError>,
    position: Position,
}

impl Prefetched {
    pub(super) fn new(loader: Loader, rows: usize, mine: Vec<Range<usize>>) -> Result<Self, DataError> {
        let (position, dataset) = (loader.position(), loader.dataset());
        let (sender, receiver) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("weightloom-data".to_owned())
            .spawn(move || prepare(loader, rows, &mine, &sender))
            .map_err(|error| DataError::Thread { message: error.to_string() })?;
        Ok(Self { receiver: Some(receiver), thread: Some(thread), position, dataset, end: None })
    }

    /// The next batch; none at the end. After an error comes the same again.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        if let Some(end) = &self.end {
            return end.clone().map(|()| None);
        }
        let prepared = self.receiver.as_ref().and_then(|receiver| receiver.recv().ok());
        let Some(Prepared { batch, position }) = prepared else {
            self.end = Some(Err(DataError::BrokeOff));
            return Err(DataError::BrokeOff);
        };
        match &batch {
            Ok(Some(_)) => self.position = position,
            Ok(None) => self.end = Some(Ok(())),
            Err(error) => self.end = Some(Err(error.clone())),
        }
        batch
    }

    /// Where the run is: behind the last batch that was given, whatever has
    /// been prepared since.
    pub fn state(&self) -> DataState {
        DataState { position: self.position, dataset: Dataset::clone(&self.dataset) }
    }
}

/// Prepares batches until there are no more, or nobody takes them.
fn prepare(mut loader: Loader, rows: usize, mine: &[Range<usize>], sender: &SyncSender<Prepared>) {
    loop {
        let batch = loader.next_batch(rows, mine);
        let last = !matches!(batch, Ok(Some(_)));
        let position = loader.position();
        if sender.send(Prepared { batch, position }).is_err() || last {
            return;
        }
    }
}

impl Drop for Prefetched {
    fn drop(&mut self) {
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            // It ends after the batch that it is making. Had it panicked,
            // `next_batch` would have said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_thread_that_broke_off_is_told() {
        let (sender, receiver) = sync_channel(WAITING);
        drop(sender);
        let dataset = Arc::new(Dataset::new(BTreeMap::new(), [].iter()));
        let position = Position::default();
        let mut ahead = Prefetched { receiver: Some(receiver), thread: None, position, dataset, end: None };
        for _ in 0..2 {
            assert_eq!(ahead.next_batch(), Err(DataError::BrokeOff));
        }
    }
}
