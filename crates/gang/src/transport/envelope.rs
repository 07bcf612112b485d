//! What precedes the bytes of a message.

use bytemuck::{Pod, Zeroable};

/// The gang, the purpose and the call that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Envelope {
    /// The gang, by a number that its members derive alike.
    pub(super) gang: u64,
    /// The call of the gang; 0 for messages of users.
    pub(super) call: u64,
    /// A [`Purpose`].
    pub(super) purpose: u64,
}

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Calls of a subtree, on their way to the root.
    Report = 1,
    /// What all ranks agreed on, on its way down.
    Result = 2,
    /// The sender is in the call and waits for others.
    Present = 3,
    /// Elements of a collective.
    Data = 4,
    /// A message of a user.
    Mail = 5,
    /// The sender's gang has failed, and why.
    Failed = 6,
}

/// Bytes of an envelope.
pub(super) const LENGTH: usize = size_of::<Envelope>();

/// Mixes words into a number. The same on every process.
pub(super) fn mix(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0x9e37_79b9_7f4a_7c15, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^ (hash >> 32)
    })
}
