//! All-to-all.

use super::{Collective, CollectiveKind};
use crate::call::{Check, Signature, Transfer, total};
use crate::conformance::{Checker, ConformanceError, Payload};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::{Gang, GangExt};

/// Sends a part to every rank and receives one from each.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct AllToAll<'a> {
    pub send: Elements<'a>,
    /// The length of each part sent.
    pub send_counts: &'a [usize],
    pub recv: ElementsMut<'a>,
    /// The length of each part received.
    pub recv_counts: &'a [usize],
}

impl<'a> Collective<'a> for AllToAll<'a> {
    const KIND: CollectiveKind = CollectiveKind::AllToAll;

    fn check(&self, check: &Check) -> Result<(), GangError> {
        check.counts(self.send_counts)?;
        check.counts(self.recv_counts)?;
        check.dtypes(&self.send, &self.recv)?;
        check.length("send", total(self.send_counts), self.send.len())?;
        check.length("receive", total(self.recv_counts), self.recv.len())
    }

    /// Counts differ from rank to rank.
    fn signature(&self) -> Signature {
        Signature::new(Self::KIND).dtype(self.send.dtype())
    }

    fn transfer(self, _rank: usize) -> Transfer<'a> {
        Transfer::Exchange {
            send: self.send,
            send_counts: self.send_counts.into(),
            recv: self.recv,
            recv_counts: self.recv_counts.into(),
        }
    }
}

pub(super) fn conformance(
    checker: &mut Checker,
    gang: &dyn Gang,
    payload: &Payload,
) -> Result<(), ConformanceError> {
    let (dtype, rank, size) = (payload.dtype, gang.rank(), gang.size());
    // Uneven in both directions, with different values for every pair.
    let count = |from: usize, to: usize| payload.counts[(from + 2 * to) % size];
    let part = |from: usize, to: usize| payload.contribution(from * 5 + to, count(from, to)).bytes().to_vec();
    let send_counts: Vec<usize> = (0..size).map(|to| count(rank, to)).collect();
    let recv_counts: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
    let case = format!("all_to_all of {send_counts:?} {dtype} for {recv_counts:?} in a gang of {size}");
    let mut send = payload.zeroed(send_counts.iter().sum());
    send.bytes_mut().copy_from_slice(&(0..size).flat_map(|to| part(rank, to)).collect::<Vec<u8>>());
    let mut recv = payload.zeroed(recv_counts.iter().sum());
    let result = gang.collective(AllToAll {
        send: send.elements(),
        send_counts: &send_counts,
        recv: recv.elements_mut(),
        recv_counts: &recv_counts,
    });
    checker.run(case.clone(), result)?;
    let expected: Vec<u8> = (0..size).flat_map(|from| part(from, rank)).collect();
    checker.equal(case, recv.bytes(), &expected[..])
}
