//! Copy-on-write of elements, piece by piece: in place, or into new memory if the
//! old memory is shared.
//!
//! A piece is copied just before it changes, when it is in the cache anyway.

use crate::element::Element;
use crate::error::Result;
use crate::parallel::PIECE;
use crate::tensor::Tensor;

/// A piece that is about to change.
pub(crate) struct CopyOnWrite<'a, T> {
    old: Option<&'a [T]>,
    new: &'a mut [T],
}

impl<'a, T: Element> CopyOnWrite<'a, T> {
    /// The pieces of a tensor. `old` comes from [`Tensor::detach_shared_memory`].
    pub(crate) fn pieces(
        op: &'static str,
        old: Option<&'a Tensor>,
        new: &'a mut Tensor,
    ) -> Result<impl Iterator<Item = Self>> {
        let old = old.map(|old| old.elements::<T>(op)).transpose()?;
        let pieces = new.elements_mut::<T>(op)?.chunks_mut(PIECE).enumerate();
        Ok(pieces.map(move |(number, new)| {
            let old = old.map(|old| &old[number * PIECE..][..new.len()]);
            Self { old, new }
        }))
    }

    /// The elements, mutable.
    pub(crate) fn elements(self) -> &'a mut [T] {
        if let Some(old) = self.old {
            self.new.copy_from_slice(old);
        }
        self.new
    }
}
