//! A log of collectives: what was sent, and why.

use std::fmt;
use std::sync::Mutex;

use crate::dist_context::locked;

/// The direction of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Computing results.
    Forward,
    /// Computing gradients.
    Backward,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        })
    }
}

/// The operation that needed a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cause {
    /// The name of the operation.
    pub op: &'static str,
    /// The pass it was part of.
    pub pass: Pass,
}

/// One collective of this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommRecord {
    /// The operation that needed it.
    pub cause: Cause,
    /// The name of the collective, such as `all-gather`.
    pub collective: &'static str,
    /// The mesh axis it ran along; `*` from one mesh to another.
    pub axis: &'static str,
    /// Bytes that this rank received.
    pub bytes: u64,
}

/// The collectives of one rank, in order. Records nothing unless enabled.
pub(crate) struct CommLog(Option<Mutex<Vec<CommRecord>>>);

impl CommLog {
    pub(crate) fn enabled() -> Self {
        Self(Some(Mutex::default()))
    }

    pub(crate) fn disabled() -> Self {
        Self(None)
    }

    pub(crate) fn record(&self, record: CommRecord) {
        if let Some(log) = &self.0 {
            locked(log).push(record);
        }
    }

    pub(crate) fn take(&self) -> Vec<CommRecord> {
        self.0.as_ref().map(|log| std::mem::take(&mut *locked(log))).unwrap_or_default()
    }
}
