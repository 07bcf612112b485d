//! All-reduce into another buffer.

use weightloom_layout::ReduceOp;

use super::{Collective, CollectiveKind};
use crate::call::{Check, Signature, Transfer};
use crate::conformance::{Checker, ConformanceError, Payload};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::{Gang, GangExt};
use crate::reduce::check_reducible;

/// Reduces the send buffers of all ranks, element by element, into the receive
/// buffer of each. Send buffers stay unchanged.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct AllReduceInto<'a> {
    pub send: Elements<'a>,
    pub recv: ElementsMut<'a>,
    pub op: ReduceOp,
}

impl<'a> Collective<'a> for AllReduceInto<'a> {
    const KIND: CollectiveKind = CollectiveKind::AllReduceInto;

    fn check(&self, check: &Check) -> Result<(), GangError> {
        check.dtypes(&self.send, &self.recv)?;
        check.length("receive", self.send.len(), self.recv.len())?;
        check_reducible(self.send.dtype(), self.op)
    }

    fn signature(&self) -> Signature {
        Signature::new(Self::KIND).dtype(self.send.dtype()).op(self.op).elements(self.send.len())
    }

    fn transfer(self, _rank: usize) -> Transfer<'a> {
        Transfer::AllReduceInto { send: self.send, recv: self.recv, op: self.op }
    }
}

pub(super) fn conformance(
    checker: &mut Checker,
    gang: &dyn Gang,
    payload: &Payload,
) -> Result<(), ConformanceError> {
    let (dtype, total, size) = (payload.dtype, payload.total(), gang.size());
    for op in payload.reductions() {
        let case = format!("all_reduce_into({op}) of {total} {dtype} in a gang of {size}");
        let send = payload.contribution(gang.rank(), total);
        let mut recv = payload.zeroed(total);
        let result = gang.collective(AllReduceInto { send: send.elements(), recv: recv.elements_mut(), op });
        checker.run(case.clone(), result)?;
        checker.equal(case.clone(), send.bytes(), payload.contribution(gang.rank(), total).bytes())?;
        checker.equal(case, recv.bytes(), payload.reduced(op, size, 0..total).bytes())?;
    }
    Ok(())
}
