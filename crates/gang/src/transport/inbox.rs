//! Messages that have arrived at a process.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::TransportError;
use super::envelope::{Envelope, LENGTH, Purpose};

/// Messages that have arrived at a process and wait for their call.
#[derive(Debug, Default)]
pub struct Inbox {
    arrived: Mutex<Arrived>,
    changed: Condvar,
}

/// The messages by what they belong to and their sender.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    waiting: FxHashMap<(Envelope, usize), VecDeque<Message>>,
    lost: Option<TransportError>,
    /// Gangs by number that failed on other ranks: the first such rank, and why.
    failed: FxHashMap<u64, (usize, Vec<u8>)>,
}

/// A message with its envelope.
#[derive(Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// The bytes after the envelope.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0[LENGTH..]
    }
}

/// Why a wait ended without what it waited for.
pub(super) enum WaitError {
    Deadline,
    Lost(TransportError),
    /// The gang failed on another process.
    Failed {
        process: usize,
        notice: Vec<u8>,
    },
}

impl Inbox {
    /// Puts a message from another process into the inbox. What no gang has sent is
    /// ignored.
    pub fn deliver(&self, from: usize, message: Vec<u8>) {
        let Some(envelope) = message.get(..LENGTH) else { return };
        let envelope = bytemuck::pod_read_unaligned(envelope);
        let mut arrived = self.lock();
        let Envelope { gang, purpose, .. } = envelope;
        if purpose == Purpose::Failed as u64 {
            arrived.failed.entry(gang).or_insert((from, message[LENGTH..].to_vec()));
        } else {
            arrived.waiting.entry((envelope, from)).or_default().push_back(Message(message));
        }
        self.changed.notify_all();
    }

    /// Ends all waits, now and later, for what has not arrived.
    pub fn lose(&self, reason: impl Into<String>) {
        let mut arrived = self.lock();
        arrived.lost.get_or_insert_with(|| TransportError { reason: reason.into() });
        self.changed.notify_all();
    }

    /// Removes messages that nobody will take.
    pub(super) fn forget(&self, is_old: impl Fn(&Envelope) -> bool) {
        self.lock().waiting.retain(|(envelope, _), _| !is_old(envelope));
    }

    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a gang has failed on another process.
    pub(super) fn has_failed(&self, gang: u64) -> bool {
        self.lock().failed.contains_key(&gang)
    }

    /// Waits until `find` returns something, or the gang of this number fails on another
    /// process.
    pub(super) fn wait<T>(
        &self,
        gang: u64,
        deadline: Instant,
        mut find: impl FnMut(&mut Arrived) -> Option<T>,
    ) -> Result<T, WaitError> {
        let mut arrived = self.lock();
        loop {
            if let Some(found) = find(&mut arrived) {
                return Ok(found);
            }
            if let Some((process, notice)) = arrived.failed.get(&gang) {
                return Err(WaitError::Failed { process: *process, notice: notice.clone() });
            }
            if let Some(lost) = &arrived.lost {
                return Err(WaitError::Lost(lost.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WaitError::Deadline);
            }
            arrived = self.changed.wait_timeout(arrived, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Arrived {
    /// Removes the next message of a sender.
    pub(super) fn take(&mut self, envelope: Envelope, from: usize) -> Option<Message> {
        let key = (envelope, from);
        let queue = self.waiting.get_mut(&key)?;
        let message = queue.pop_front();
        // Calls are numbered without end, so empty queues are removed.
        if queue.is_empty() {
            self.waiting.remove(&key);
        }
        message
    }
}
