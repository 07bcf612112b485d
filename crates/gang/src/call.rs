//! One collective call: its buffers, its checks, and its signature.

use std::fmt;
use std::hash::Hasher;

use bytemuck::{Pod, Zeroable};
use rustc_hash::FxHasher;
use weightloom_layout::{DType, ReduceOp};

use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::reduce::check_reducible;

/// A collective that every rank of a gang takes part in.
///
/// Counts are in elements, one per rank of the gang, in rank order; what they
/// describe lies back to back in the buffer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Call<'a> {
    /// Wait until every rank has come here.
    Barrier,
    /// Combine the buffers of all ranks, element by element, into each.
    AllReduce {
        /// This rank's values before, the combined ones after.
        buffer: ElementsMut<'a>,
        /// How values combine.
        op: ReduceOp,
    },
    /// Combine what all ranks send, element by element, for each of them. What
    /// is sent stays as it is.
    AllReduceInto {
        /// This rank's values.
        send: Elements<'a>,
        /// The combined ones.
        recv: ElementsMut<'a>,
        /// How values combine.
        op: ReduceOp,
    },
    /// Give every rank the concatenation of what all ranks send.
    AllGather {
        /// This rank's part.
        send: Elements<'a>,
        /// All parts, in rank order.
        recv: ElementsMut<'a>,
        /// The length of each rank's part.
        counts: &'a [usize],
    },
    /// Combine the buffers of all ranks and give each rank its part.
    ReduceScatter {
        /// This rank's values for all parts.
        send: Elements<'a>,
        /// The combined values of this rank's part.
        recv: ElementsMut<'a>,
        /// The length of each rank's part.
        counts: &'a [usize],
        /// How values combine.
        op: ReduceOp,
    },
    /// Send a part to every rank and receive one from each.
    AllToAll {
        /// The parts for the other ranks.
        send: Elements<'a>,
        /// The length of each part sent.
        send_counts: &'a [usize],
        /// The parts from the other ranks.
        recv: ElementsMut<'a>,
        /// The length of each part received.
        recv_counts: &'a [usize],
    },
    /// Give every rank what one rank has.
    Broadcast {
        /// The root's values, everybody's afterwards.
        buffer: ElementsMut<'a>,
        /// The rank that has them.
        root: usize,
    },
}

impl Call<'_> {
    /// The name, as in `all_reduce`.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    fn kind(&self) -> CallKind {
        match self {
            Self::Barrier => CallKind::Barrier,
            Self::AllReduce { .. } => CallKind::AllReduce,
            Self::AllReduceInto { .. } => CallKind::AllReduceInto,
            Self::AllGather { .. } => CallKind::AllGather,
            Self::ReduceScatter { .. } => CallKind::ReduceScatter,
            Self::AllToAll { .. } => CallKind::AllToAll,
            Self::Broadcast { .. } => CallKind::Broadcast,
        }
    }

    /// Checks what one rank can check alone: lengths, counts, dtypes. Engines
    /// call this first, so that they may index without further checks.
    pub fn check(&self, rank: usize, size: usize) -> Result<(), GangError> {
        let call = self.name();
        let counted = |counts: &[usize]| match counts.len() == size {
            true => Ok(()),
            false => Err(GangError::CountList { call, size, found: counts.len() }),
        };
        let sized = |buffer: &'static str, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(GangError::Length { call, buffer, expected, found }),
        };
        let typed = |send: DType, receive: DType| match send == receive {
            true => Ok(()),
            false => Err(GangError::DTypes { call, send, receive }),
        };
        match self {
            Self::Barrier => Ok(()),
            Self::AllReduce { buffer, op } => check_reducible(buffer.dtype(), *op),
            Self::AllReduceInto { send, recv, op } => {
                typed(send.dtype(), recv.dtype())?;
                sized("receive", send.len(), recv.len())?;
                check_reducible(send.dtype(), *op)
            }
            Self::AllGather { send, recv, counts } => {
                counted(counts)?;
                typed(send.dtype(), recv.dtype())?;
                sized("send", counts[rank], send.len())?;
                sized("receive", total(counts), recv.len())
            }
            Self::ReduceScatter { send, recv, counts, op } => {
                counted(counts)?;
                typed(send.dtype(), recv.dtype())?;
                sized("send", total(counts), send.len())?;
                sized("receive", counts[rank], recv.len())?;
                check_reducible(send.dtype(), *op)
            }
            Self::AllToAll { send, send_counts, recv, recv_counts } => {
                counted(send_counts)?;
                counted(recv_counts)?;
                typed(send.dtype(), recv.dtype())?;
                sized("send", total(send_counts), send.len())?;
                sized("receive", total(recv_counts), recv.len())
            }
            Self::Broadcast { root, .. } if *root >= size => Err(GangError::NoSuchRank { rank: *root, size }),
            Self::Broadcast { .. } => Ok(()),
        }
    }

    /// What must be the same on every rank.
    pub fn signature(&self) -> Signature {
        let (dtype, op, root, elements, counts): (_, _, _, _, &[usize]) = match self {
            Self::Barrier => (None, None, 0, 0, &[]),
            Self::AllReduce { buffer, op } => (Some(buffer.dtype()), Some(*op), 0, buffer.len(), &[]),
            Self::AllReduceInto { send, op, .. } => (Some(send.dtype()), Some(*op), 0, send.len(), &[]),
            Self::AllGather { recv, counts, .. } => (Some(recv.dtype()), None, 0, recv.len(), counts),
            Self::ReduceScatter { send, counts, op, .. } => {
                (Some(send.dtype()), Some(*op), 0, send.len(), counts)
            }
            // How much each rank trades is its own affair.
            Self::AllToAll { send, .. } => (Some(send.dtype()), None, 0, 0, &[]),
            Self::Broadcast { buffer, root } => (Some(buffer.dtype()), None, *root, buffer.len(), &[]),
        };
        Signature {
            elements: elements as u64,
            counts: digest(counts),
            root: root as u32,
            kind: self.kind() as u8,
            dtype: dtype.map_or(NONE, |dtype| dtype as u8),
            op: op.map_or(NONE, |op| op as u8),
            reserved: 0,
        }
    }
}

/// The sum of counts. One that overflows is longer than any buffer.
pub(crate) fn total(counts: &[usize]) -> usize {
    counts.iter().fold(0, |sum: usize, &count| sum.saturating_add(count))
}

const NONE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum CallKind {
    Barrier,
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Leave,
    Form,
    AllReduceInto,
}

impl CallKind {
    const ALL: [Self; 9] = [
        Self::Barrier,
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Broadcast,
        Self::Leave,
        Self::Form,
        Self::AllReduceInto,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::AllReduce => "all_reduce",
            Self::AllReduceInto => "all_reduce_into",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Broadcast => "broadcast",
            Self::Leave => "leave",
            Self::Form => "sub_gang",
        }
    }
}

fn digest(counts: &[usize]) -> u64 {
    let mut hasher = FxHasher::default();
    counts.iter().for_each(|&count| hasher.write_usize(count));
    hasher.finish()
}

/// The part of a call that must be the same on every rank, small enough to
/// send ahead of the data.
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
    reserved: u8,
}

impl Signature {
    /// The signature of a rank that will take part in nothing more.
    pub fn leave() -> Self {
        Self { kind: CallKind::Leave as u8, dtype: NONE, op: NONE, ..Self::zeroed() }
    }

    /// The signature of forming a sub-gang of these ranks.
    pub fn form(ranks: &[usize]) -> Self {
        Self { kind: CallKind::Form as u8, dtype: NONE, op: NONE, counts: digest(ranks), ..Self::zeroed() }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = CallKind::ALL.get(usize::from(self.kind)).copied();
        f.write_str(kind.map_or("an unknown call", CallKind::name))?;
        if let Some(op) = ReduceOp::ALL.get(usize::from(self.op)) {
            write!(f, "({op})")?;
        }
        let dtype = DType::ALL.get(usize::from(self.dtype));
        match (kind, dtype) {
            (Some(CallKind::AllToAll), Some(dtype)) => write!(f, " of {dtype}")?,
            (_, Some(dtype)) => write!(f, " of {} {dtype}", self.elements)?,
            (_, None) => {}
        }
        match kind {
            Some(CallKind::Broadcast) => write!(f, " from rank {} of its gang", self.root),
            Some(CallKind::AllGather | CallKind::ReduceScatter) => {
                write!(f, " in parts #{:04x}", self.counts as u16)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_back_as_what_they_stand_for() {
        for (code, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, code);
        }
        for (code, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, code);
        }
        for (code, kind) in CallKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, code);
        }
        let mut values = [1.0f32; 3];
        let call = Call::AllReduce { buffer: ElementsMut::of(&mut values), op: ReduceOp::Avg };
        assert_eq!(call.signature().to_string(), "all_reduce(avg) of 3 f32");
        assert_eq!(Signature::leave().to_string(), "leave");
    }

    #[test]
    fn a_rank_checks_its_own_buffers() {
        let gather = |rank: usize, counts: &[usize]| {
            let (send, mut recv) = ([0u8; 3], [0u8; 5]);
            Call::AllGather { send: Elements::of(&send), recv: ElementsMut::of(&mut recv), counts }
                .check(rank, 2)
        };
        assert_eq!(gather(0, &[3, 2]), Ok(()));
        assert!(matches!(gather(0, &[3]), Err(GangError::CountList { .. })));
        let error = gather(1, &[3, 2]).unwrap_err();
        assert_eq!(error.to_string(), "all_gather needs 2 elements in its send buffer, not 3");
        let mut flags = [0u8; 2];
        let buffer = ElementsMut::from_bytes(DType::Bool, &mut flags).unwrap();
        assert!(Call::AllReduce { buffer, op: ReduceOp::Sum }.check(0, 2).is_err());
        let buffer = ElementsMut::of(&mut flags);
        assert!(matches!(
            Call::Broadcast { buffer, root: 2 }.check(0, 2),
            Err(GangError::NoSuchRank { rank: 2, size: 2 })
        ));
    }
}
