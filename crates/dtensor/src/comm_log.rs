//! What was sent, and why.

use std::fmt;

/// When something was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// While results were computed.
    Forward,
    /// While gradients were.
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

/// The operation that made ranks communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cause {
    /// The operation.
    pub op: &'static str,
    /// When.
    pub pass: Pass,
}

/// One collective of this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommRecord {
    /// What caused it.
    pub cause: Cause,
    /// The collective, as in `all-gather`.
    pub collective: &'static str,
    /// The mesh axis along which it ran.
    pub axis: &'static str,
    /// Bytes that this rank received.
    pub bytes: u64,
}
