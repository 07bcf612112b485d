//! Broadcast.

use super::{Collective, CollectiveKind};
use crate::call::{Check, Signature, Transfer};
use crate::conformance::{Checker, ConformanceError, Payload, roots};
use crate::element::ElementsMut;
use crate::error::GangError;
use crate::gang::{Gang, GangExt};

/// Copies the root's buffer to every rank.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Broadcast<'a> {
    pub buffer: ElementsMut<'a>,
    pub root: usize,
}

impl<'a> Collective<'a> for Broadcast<'a> {
    const KIND: CollectiveKind = CollectiveKind::Broadcast;

    fn check(&self, check: &Check) -> Result<(), GangError> {
        check.root(self.root)
    }

    fn signature(&self) -> Signature {
        let signature = Signature::new(Self::KIND).dtype(self.buffer.dtype());
        signature.elements(self.buffer.len()).root(self.root)
    }

    fn transfer(self, _rank: usize) -> Transfer<'a> {
        Transfer::Broadcast { buffer: self.buffer, root: self.root }
    }
}

pub(super) fn conformance(
    checker: &mut Checker,
    gang: &dyn Gang,
    payload: &Payload,
) -> Result<(), ConformanceError> {
    for root in roots(gang.size()) {
        let (dtype, count) = (payload.dtype, payload.counts[root]);
        let case = format!("broadcast of {count} {dtype} from {root} of {}", gang.size());
        let mut buffer = payload.contribution(gang.rank(), count);
        let result = gang.collective(Broadcast { buffer: buffer.elements_mut(), root });
        checker.run(case.clone(), result)?;
        checker.equal(case, buffer.bytes(), payload.contribution(root, count).bytes())?;
    }
    Ok(())
}
