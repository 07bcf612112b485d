//! One collective call: its signature and the transfer that engines carry out.

use std::fmt;
use std::hash::Hasher;

use bytemuck::{Pod, Zeroable};
use rustc_hash::FxHasher;
use weightloom_layout::{DType, ReduceOp};

use crate::collectives::{Collective, CollectiveKind};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;

/// A collective that has passed its checks on this rank.
///
/// Created from a [`Collective`], which [`collectives`](crate::collectives)
/// lists. An engine compares the [`signature`](Self::signature) across ranks,
/// then carries out the [`transfer`](Self::into_transfer).
#[derive(Debug)]
pub struct Call<'a> {
    signature: Signature,
    transfer: Transfer<'a>,
}

impl<'a> Call<'a> {
    /// Checks lengths, counts and dtypes of a collective on this rank, so that
    /// engines may index without further checks.
    pub fn new<C: Collective<'a>>(collective: C, rank: usize, size: usize) -> Result<Self, GangError> {
        collective.check(&Check { call: C::KIND.name(), rank, size })?;
        Ok(Self { signature: collective.signature(), transfer: collective.transfer(rank) })
    }

    /// The part of the call that must be equal on every rank.
    pub fn signature(&self) -> Signature {
        self.signature
    }

    /// The movement of data.
    pub fn transfer(&self) -> &Transfer<'a> {
        &self.transfer
    }

    /// The movement of data, with its buffers.
    pub fn into_transfer(self) -> Transfer<'a> {
        self.transfer
    }
}

/// The data movements that an engine provides. Every collective is one of them.
///
/// Counts are in elements, one per rank of the gang, in rank order; the parts
/// that they describe are contiguous.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Transfer<'a> {
    /// No data: agreeing on the signature is all there is to do.
    None,
    /// Reduces the buffers of all ranks, element by element, into each of them.
    AllReduce { buffer: ElementsMut<'a>, op: ReduceOp },
    /// Reduces the send buffers of all ranks into the receive buffer of each.
    AllReduceInto { send: Elements<'a>, recv: ElementsMut<'a>, op: ReduceOp },
    /// Concatenates the send buffers of all ranks in each receive buffer.
    AllGather { send: Elements<'a>, recv: ElementsMut<'a>, counts: &'a [usize] },
    /// Reduces the send buffers of all ranks; rank `r` receives the `r`-th part.
    ReduceScatter { send: Elements<'a>, recv: ElementsMut<'a>, counts: &'a [usize], op: ReduceOp },
    /// Sends a part to every rank and receives one from each. Engines check
    /// that the counts of both sides agree.
    Exchange { send: Elements<'a>, send_counts: Counts<'a>, recv: ElementsMut<'a>, recv_counts: Counts<'a> },
    /// Copies the root's buffer to every rank.
    Broadcast { buffer: ElementsMut<'a>, root: usize },
}

/// Counts that a caller passes, or that a collective derives from its operands.
pub type Counts<'a> = std::borrow::Cow<'a, [usize]>;

/// Checks of operands on one rank.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Check {
    pub call: &'static str,
    pub rank: usize,
    pub size: usize,
}

impl Check {
    /// Checks that there is one count per rank.
    pub fn counts(&self, counts: &[usize]) -> Result<(), GangError> {
        let &Self { call, size, .. } = self;
        match counts.len() == size {
            true => Ok(()),
            false => Err(GangError::CountList { call, size, found: counts.len() }),
        }
    }

    /// Checks the length of the `send` or `receive` buffer.
    pub fn length(&self, buffer: &'static str, expected: usize, found: usize) -> Result<(), GangError> {
        match expected == found {
            true => Ok(()),
            false => Err(GangError::Length { call: self.call, buffer, expected, found }),
        }
    }

    /// Checks that both buffers have the same dtype.
    pub fn dtypes(&self, send: &Elements<'_>, recv: &ElementsMut<'_>) -> Result<(), GangError> {
        let (send, receive) = (send.dtype(), recv.dtype());
        match send == receive {
            true => Ok(()),
            false => Err(GangError::DTypes { call: self.call, send, receive }),
        }
    }

    /// Checks that a root is a rank of the gang.
    pub fn root(&self, root: usize) -> Result<(), GangError> {
        match root < self.size {
            true => Ok(()),
            false => Err(GangError::NoSuchRank { rank: root, size: self.size }),
        }
    }
}

/// The sum of counts. One that overflows exceeds the length of any buffer.
pub(crate) fn total(counts: &[usize]) -> usize {
    counts.iter().fold(0, |sum: usize, &count| sum.saturating_add(count))
}

fn digest(counts: &[usize]) -> u64 {
    let mut hasher = FxHasher::default();
    counts.iter().for_each(|&count| hasher.write_usize(count));
    hasher.finish()
}

/// The part of a call that must be equal on every rank, small enough to send
/// ahead of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct Signature {
    elements: u64,
    /// Digest of the list of counts.
    counts: u64,
    root: u32,
    kind: u8,
    dtype: u8,
    op: u8,
    /// Which of `elements`, `counts` and `root` are set.
    fields: u8,
}

const NONE: u8 = u8::MAX;
const HAS_ELEMENTS: u8 = 1;
const HAS_COUNTS: u8 = 2;
const HAS_ROOT: u8 = 4;

impl Signature {
    /// The signature of a collective without operands.
    pub fn new(kind: CollectiveKind) -> Self {
        Self { kind: kind as u8, dtype: NONE, op: NONE, ..Self::zeroed() }
    }

    /// The signature of a rank that leaves the gang.
    pub fn leave() -> Self {
        Self::new(CollectiveKind::Leave)
    }

    /// The signature of forming a sub-gang of these ranks.
    pub fn sub_gang(ranks: &[usize]) -> Self {
        Self { counts: digest(ranks), ..Self::new(CollectiveKind::SubGang) }
    }

    /// Adds a dtype.
    #[must_use]
    pub fn dtype(self, dtype: DType) -> Self {
        Self { dtype: dtype as u8, ..self }
    }

    /// Adds a reduction.
    #[must_use]
    pub fn op(self, op: ReduceOp) -> Self {
        Self { op: op as u8, ..self }
    }

    /// Adds a number of elements.
    #[must_use]
    pub fn elements(self, elements: usize) -> Self {
        Self { elements: elements as u64, fields: self.fields | HAS_ELEMENTS, ..self }
    }

    /// Adds the list of counts.
    #[must_use]
    pub fn counts(self, counts: &[usize]) -> Self {
        Self { counts: digest(counts), fields: self.fields | HAS_COUNTS, ..self }
    }

    /// Adds a root.
    #[must_use]
    pub fn root(self, root: usize) -> Self {
        Self { root: root as u32, fields: self.fields | HAS_ROOT, ..self }
    }

    /// The name of the collective: `all_reduce`.
    pub fn name(&self) -> &'static str {
        CollectiveKind::ALL.get(usize::from(self.kind)).map_or("an unknown call", |kind| kind.name())
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Some(op) = ReduceOp::ALL.get(usize::from(self.op)) {
            write!(f, "({op})")?;
        }
        match (DType::ALL.get(usize::from(self.dtype)), self.fields & HAS_ELEMENTS != 0) {
            (Some(dtype), true) => write!(f, " of {} {dtype}", self.elements)?,
            (Some(dtype), false) => write!(f, " of {dtype}")?,
            (None, _) => {}
        }
        if self.fields & HAS_ROOT != 0 {
            write!(f, " with root {} of its gang", self.root)?;
        }
        if self.fields & HAS_COUNTS != 0 {
            write!(f, " with counts #{:04x}", self.counts as u16)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::{AllGather, AllReduce, Broadcast};

    #[test]
    fn codes_in_a_signature_read_back() {
        for (code, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, code);
        }
        for (code, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, code);
        }
        for (code, kind) in CollectiveKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, code);
        }
        let mut values = [1.0f32; 3];
        let reduce = AllReduce { buffer: ElementsMut::of(&mut values), op: ReduceOp::Avg };
        assert_eq!(reduce.signature().to_string(), "all_reduce(avg) of 3 f32");
        assert_eq!(Signature::leave().to_string(), "leave");
    }

    #[test]
    fn a_rank_checks_its_own_buffers() {
        let gather = |rank: usize, counts: &[usize]| {
            let (send, mut recv) = ([0u8; 3], [0u8; 5]);
            let gather = AllGather { send: Elements::of(&send), recv: ElementsMut::of(&mut recv), counts };
            Call::new(gather, rank, 2).map(drop)
        };
        assert_eq!(gather(0, &[3, 2]), Ok(()));
        assert!(matches!(gather(0, &[3]), Err(GangError::CountList { .. })));
        let error = gather(1, &[3, 2]).unwrap_err();
        assert_eq!(error.to_string(), "all_gather needs 2 elements in its send buffer, not 3");
        let mut flags = [0u8; 2];
        let buffer = ElementsMut::from_bytes(DType::Bool, &mut flags).unwrap();
        assert!(Call::new(AllReduce { buffer, op: ReduceOp::Sum }, 0, 2).is_err());
        let buffer = ElementsMut::of(&mut flags);
        assert!(matches!(
            Call::new(Broadcast { buffer, root: 2 }, 0, 2),
            Err(GangError::NoSuchRank { rank: 2, size: 2 })
        ));
    }
}
