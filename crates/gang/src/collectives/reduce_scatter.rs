//! Reduce-scatter.

use weightloom_layout::ReduceOp;

use super::{Collective, CollectiveKind};
use crate::call::{Check, Signature, Transfer, total};
use crate::conformance::{Checker, ConformanceError, Payload};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::{Gang, GangExt};
use crate::reduce::check_reducible;

/// Reduces the send buffers of all ranks; rank `r` receives the `r`-th part.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct ReduceScatter<'a> {
    pub send: Elements<'a>,
    pub recv: ElementsMut<'a>,
    /// The length of each rank's part, the same list on all ranks.
    pub counts: &'a [usize],
    pub op: ReduceOp,
}

impl<'a> Collective<'a> for ReduceScatter<'a> {
    const KIND: CollectiveKind = CollectiveKind::ReduceScatter;

    fn check(&self, check: &Check) -> Result<(), GangError> {
        check.counts(self.counts)?;
        check.dtypes(&self.send, &self.recv)?;
        check.length("send", total(self.counts), self.send.len())?;
        check.length("receive", self.counts[check.rank], self.recv.len())?;
        check_reducible(self.send.dtype(), self.op)
    }

    fn signature(&self) -> Signature {
        let signature = Signature::new(Self::KIND).dtype(self.send.dtype()).op(self.op);
        signature.elements(self.send.len()).counts(self.counts)
    }

    fn transfer(self, _rank: usize) -> Transfer<'a> {
        let Self { send, recv, counts, op } = self;
        Transfer::ReduceScatter { send, recv, counts, op }
    }
}

pub(super) fn conformance(
    checker: &mut Checker,
    gang: &dyn Gang,
    payload: &Payload,
) -> Result<(), ConformanceError> {
    let (dtype, counts, rank) = (payload.dtype, payload.counts.as_slice(), gang.rank());
    for op in payload.reductions() {
        let case = format!("reduce_scatter({op}) of {counts:?} {dtype} in a gang of {}", gang.size());
        let send = payload.contribution(rank, payload.total());
        let mut recv = payload.zeroed(counts[rank]);
        let (send, into) = (send.elements(), recv.elements_mut());
        let result = gang.collective(ReduceScatter { send, recv: into, counts, op });
        checker.run(case.clone(), result)?;
        let start: usize = counts[..rank].iter().sum();
        let expected = payload.reduced(op, gang.size(), start..start + counts[rank]);
        checker.equal(case, recv.bytes(), expected.bytes())?;
    }
    Ok(())
}
