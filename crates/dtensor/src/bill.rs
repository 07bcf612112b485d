//! What was sent, and why.

/// When something was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// While results were computed.
    Forward,
    /// While gradients were.
    Backward,
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
pub struct Item {
    /// What caused it.
    pub cause: Cause,
    /// The collective, as in `all-gather`.
    pub collective: &'static str,
    /// The mesh axis along which it ran.
    pub axis: &'static str,
    /// Bytes that this rank received.
    pub bytes: u64,
}
