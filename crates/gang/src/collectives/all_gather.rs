//! All-gather.

use super::{Collective, CollectiveKind};
use crate::call::{Check, Signature, Transfer, total};
use crate::conformance::{Checker, ConformanceError, Payload};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::{Gang, GangExt};

/// Concatenates the send buffers of all ranks in each receive buffer.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct AllGather<'a> {
    pub send: Elements<'a>,
    pub recv: ElementsMut<'a>,
    /// The length of each rank's send buffer, the same list on all ranks.
    pub counts: &'a [usize],
}

impl<'a> Collective<'a> for AllGather<'a> {
    const KIND: CollectiveKind = CollectiveKind::AllGather;

    fn check(&self, check: &Check) -> Result<(), GangError> {
        check.counts(self.counts)?;
        check.dtypes(&self.send, &self.recv)?;
        check.length("send", self.counts[check.rank], self.send.len())?;
        check.length("receive", total(self.counts), self.recv.len())
    }

    fn signature(&self) -> Signature {
        Signature::new(Self::KIND).dtype(self.recv.dtype()).elements(self.recv.len()).counts(self.counts)
    }

    fn transfer(self, _rank: usize) -> Transfer<'a> {
        Transfer::AllGather { send: self.send, recv: self.recv, counts: self.counts }
    }
}

pub(super) fn conformance(
    checker: &mut Checker,
    gang: &dyn Gang,
    payload: &Payload,
) -> Result<(), ConformanceError> {
    let (dtype, counts) = (payload.dtype, payload.counts.as_slice());
    let case = format!("all_gather of {counts:?} {dtype} in a gang of {}", gang.size());
    let send = payload.contribution(gang.rank(), counts[gang.rank()]);
    let mut recv = payload.zeroed(payload.total());
    let result = gang.collective(AllGather { send: send.elements(), recv: recv.elements_mut(), counts });
    checker.run(case.clone(), result)?;
    let expected: Vec<u8> = counts
        .iter()
        .enumerate()
        .flat_map(|(rank, &count)| payload.contribution(rank, count).bytes().to_vec())
        .collect();
    checker.equal(case, recv.bytes(), &expected[..])
}
