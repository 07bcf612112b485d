//! The collectives, one file each.
//!
//! A file holds the operands of a collective, their checks, the signature that
//! all ranks must share, the [`Transfer`] that carries it out, and its cases in
//! the conformance suite. To add a collective: write its file, list it here,
//! and give it a method in [`GangExt`](crate::GangExt). Engines carry out
//! transfers and do not know collectives.

mod all_gather;
mod all_reduce;
mod all_reduce_into;
mod all_to_all;
mod barrier;
mod broadcast;
mod reduce_scatter;

use crate::call::{Check, Signature, Transfer};
use crate::conformance::{Checker, ConformanceError, Payload};
use crate::error::GangError;
use crate::gang::Gang;

pub use all_gather::AllGather;
pub use all_reduce::AllReduce;
pub use all_reduce_into::AllReduceInto;
pub use all_to_all::AllToAll;
pub use barrier::Barrier;
pub use broadcast::Broadcast;
pub use reduce_scatter::ReduceScatter;

/// A collective operation with its operands.
pub trait Collective<'a> {
    /// Identifies the collective in signatures.
    const KIND: CollectiveKind;

    /// Checks what one rank can check without the others.
    fn check(&self, check: &Check) -> Result<(), GangError>;

    /// The part of the call that must be equal on every rank.
    fn signature(&self) -> Signature;

    /// The data movement on this rank, after the checks.
    fn transfer(self, rank: usize) -> Transfer<'a>;
}

macro_rules! kinds {
    ($($kind:ident $name:ident,)*) => {
        /// The code of a collective in a [`Signature`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[non_exhaustive]
        #[allow(missing_docs)]
        pub enum CollectiveKind {
            $($kind,)*
            /// A rank leaves the gang.
            Leave,
            /// Ranks form a sub-gang.
            SubGang,
        }

        impl CollectiveKind {
            pub(crate) const ALL: [Self; [$(stringify!($name),)* "leave", "sub_gang"].len()] =
                [$(Self::$kind,)* Self::Leave, Self::SubGang];

            /// The name: `all_reduce`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($name),)*
                    Self::Leave => "leave",
                    Self::SubGang => "sub_gang",
                }
            }
        }

        /// Runs the cases of every collective for one payload.
        pub(crate) fn check_all(
            checker: &mut Checker,
            gang: &dyn Gang,
            payload: &Payload,
        ) -> Result<(), ConformanceError> {
            $($name::conformance(checker, gang, payload)?;)*
            Ok(())
        }
    };
}

kinds! {
    Barrier barrier,
    AllGather all_gather,
    Broadcast broadcast,
    AllToAll all_to_all,
    AllReduce all_reduce,
    AllReduceInto all_reduce_into,
    ReduceScatter reduce_scatter,
}
