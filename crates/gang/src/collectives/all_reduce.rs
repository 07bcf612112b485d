//! All-reduce in place.

use weightloom_layout::ReduceOp;

use super::{Collective, CollectiveKind};
use crate::call::{Check, Signature, Transfer};
use crate::conformance::{Checker, ConformanceError, Payload};
use crate::element::ElementsMut;
use crate::error::GangError;
use crate::gang::{Gang, GangExt};
use crate::reduce::check_reducible;

/// Reduces the buffers of all ranks, element by element, into each of them.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct AllReduce<'a> {
    pub buffer: ElementsMut<'a>,
    pub op: ReduceOp,
}

impl<'a> Collective<'a> for AllReduce<'a> {
    const KIND: CollectiveKind = CollectiveKind::AllReduce;

    fn check(&self, _check: &Check) -> Result<(), GangError> {
        check_reducible(self.buffer.dtype(), self.op)
    }

    fn signature(&self) -> Signature {
        Signature::new(Self::KIND).dtype(self.buffer.dtype()).op(self.op).elements(self.buffer.len())
    }

    fn transfer(self, _rank: usize) -> Transfer<'a> {
        Transfer::AllReduce { buffer: self.buffer, op: self.op }
    }
}

pub(super) fn conformance(
    checker: &mut Checker,
    gang: &dyn Gang,
    payload: &Payload,
) -> Result<(), ConformanceError> {
    let (dtype, total, size) = (payload.dtype, payload.total(), gang.size());
    for op in payload.reductions() {
        let case = format!("all_reduce({op}) of {total} {dtype} in a gang of {size}");
        let mut buffer = payload.contribution(gang.rank(), total);
        let result = gang.collective(AllReduce { buffer: buffer.elements_mut(), op });
        checker.run(case.clone(), result)?;
        checker.equal(case, buffer.bytes(), payload.reduced(op, size, 0..total).bytes())?;
    }
    Ok(())
}
