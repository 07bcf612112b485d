//! Elements that are changed piece by piece: in place, or, where somebody else
//! holds them, into new memory.
//!
//! A piece is copied just before it is changed, when it is in the cache anyway.

use crate::element::Element;
use crate::error::TensorError;
use crate::parallel::PIECE;
use crate::tensor::Tensor;

/// A piece that is about to be changed.
pub(crate) struct Changing<'a, T> {
    old: Option<&'a [T]>,
    new: &'a mut [T],
}

impl<'a, T: Element> Changing<'a, T> {
    /// The pieces of a tensor. `old` is what [`Tensor::set_aside`] gave.
    pub(crate) fn pieces(
        op: &'static str,
        old: Option<&'a Tensor>,
        new: &'a mut Tensor,
    ) -> Result<impl Iterator<Item = Self>, TensorError> {
        let old = old.map(|old| old.elements::<T>(op)).transpose()?;
        let pieces = new.elements_mut::<T>(op)?.chunks_mut(PIECE).enumerate();
        Ok(pieces.map(move |(number, new)| {
            let old = old.map(|old| &old[number * PIECE..][..new.len()]);
            Self { old, new }
        }))
    }

    /// The elements, to be changed.
    pub(crate) fn elements(self) -> &'a mut [T] {
        if let Some(old) = self.old {
            self.new.copy_from_slice(old);
        }
        self.new
    }
}
