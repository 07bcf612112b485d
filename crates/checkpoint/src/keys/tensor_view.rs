//! Tensors that key maps can transform.

use std::ops::Range;

use weightloom_layout::Shape;

use super::KeyError;
use crate::index::TensorEntry;
use crate::view::ViewError;

/// A tensor that rules of a [`KeyMap`](super::KeyMap) can transform: one in a file,
/// or the shard of one. Methods take the tensor's name for messages.
pub trait TensorView: Sized {
    /// Why a tensor cannot be transformed.
    type Error: From<KeyError>;

    /// Its shape.
    fn shape(&self) -> &Shape;

    /// The tensor in a range of one dim.
    fn narrow(&self, name: &str, dim: usize, range: Range<usize>) -> Result<Self, Self::Error>;

    /// Concatenates tensors along a dim.
    fn join(name: &str, dim: usize, parts: &[Self]) -> Result<Self, Self::Error>;

    /// Stacks tensors of one shape along a new first dim.
    fn stack(name: &str, parts: &[Self]) -> Result<Self, Self::Error>;

    /// The slices of the first dim.
    fn unstack(&self, name: &str) -> Result<Vec<Self>, Self::Error>;

    /// Swaps the last two dims.
    fn transpose(&self, name: &str) -> Result<Self, Self::Error>;

    /// Transposes a dim of `outer × inner × rest` elements to `outer × rest × inner`.
    fn regroup(&self, name: &str, dim: usize, outer: usize, inner: usize) -> Result<Self, Self::Error>;
}

impl TensorView for TensorEntry {
    type Error = KeyError;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn narrow(&self, name: &str, dim: usize, range: Range<usize>) -> Result<Self, KeyError> {
        self.narrow(dim, range).map_err(about(name))
    }

    fn join(name: &str, dim: usize, parts: &[Self]) -> Result<Self, KeyError> {
        Self::join(dim, parts).map_err(about(name))
    }

    fn stack(name: &str, parts: &[Self]) -> Result<Self, KeyError> {
        Self::stack(parts).map_err(about(name))
    }

    fn unstack(&self, name: &str) -> Result<Vec<Self>, KeyError> {
        self.unstack().map_err(about(name))
    }

    fn transpose(&self, name: &str) -> Result<Self, KeyError> {
        let last = self.shape.ndim().max(2) - 1;
        self.transpose(last - 1, last).map_err(about(name))
    }

    fn regroup(&self, name: &str, dim: usize, outer: usize, inner: usize) -> Result<Self, KeyError> {
        self.regroup(dim, outer, inner).map_err(about(name))
    }
}

fn about(name: &str) -> impl FnOnce(ViewError) -> KeyError {
    let key = name.to_owned();
    |problem| KeyError::View { key, problem }
}
