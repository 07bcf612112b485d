//! Barrier.

use super::{Collective, CollectiveKind};
use crate::call::{Check, Signature, Transfer};
use crate::conformance::{Checker, ConformanceError, Payload};
use crate::error::GangError;
use crate::gang::Gang;

/// Waits until every rank has called it.
#[derive(Clone, Copy, Debug)]
pub struct Barrier;

impl<'a> Collective<'a> for Barrier {
    const KIND: CollectiveKind = CollectiveKind::Barrier;

    fn check(&self, _check: &Check) -> Result<(), GangError> {
        Ok(())
    }

    fn signature(&self) -> Signature {
        Signature::new(Self::KIND)
    }

    fn transfer(self, _rank: usize) -> Transfer<'a> {
        Transfer::None
    }
}

/// Nothing to compare: the suite calls barriers between its other cases.
pub(super) fn conformance(
    _checker: &mut Checker,
    _gang: &dyn Gang,
    _payload: &Payload,
) -> Result<(), ConformanceError> {
    Ok(())
}
