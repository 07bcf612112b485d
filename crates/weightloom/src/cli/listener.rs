//! Commands that a program calls: their results go to a listener, not to stdout.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use weightloom::gang::Gang;
use weightloom::train::callback::Callback;

/// Receives what a command would print. Called from several threads at once.
pub trait Listener: Send + Sync {
    /// A result of the command, as JSON. Some commands have several.
    fn result(&self, json: &str);

    /// A line of status or a note.
    fn status(&self, line: &str) {
        let _ = line;
    }

    /// Something that the command survived and its caller should know.
    fn warning(&self, text: &str) {
        let _ = text;
    }

    /// An operation over `total` bytes begins.
    fn begin(&self, work: &str, total: u64) {
        let _ = (work, total);
    }

    /// Another `bytes` bytes are done.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether the command should end early. A training run ends after the current step,
    /// with a checkpoint.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Callbacks of a training run. They are called on its first rank.
    fn callbacks(&self) -> Vec<Box<dyn Callback>> {
        Vec::new()
    }

    /// The ranks of a training run, if this process is one of several.
    fn gang(&self) -> Option<Arc<dyn Gang>> {
        None
    }
}

/// The listeners of the commands that run, by number: [`Output`](super::output::Output)
/// is copied to every part of a command.
static LISTENERS: RwLock<BTreeMap<u64, Arc<dyn Listener>>> = RwLock::new(BTreeMap::new());

/// The number of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListenerId(u64);

impl ListenerId {
    pub(super) fn get(self) -> Option<Arc<dyn Listener>> {
        LISTENERS.read().unwrap_or_else(PoisonError::into_inner).get(&self.0).cloned()
    }
}

/// A listener for as long as its command runs.
pub(super) struct Listening(ListenerId);

impl Listening {
    pub(super) fn new(listener: Arc<dyn Listener>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        LISTENERS.write().unwrap_or_else(PoisonError::into_inner).insert(id, listener);
        Self(ListenerId(id))
    }

    pub(super) fn id(&self) -> ListenerId {
        self.0
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENERS.write().unwrap_or_else(PoisonError::into_inner).remove(&self.0.0);
    }
}
