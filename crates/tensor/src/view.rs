//! Shapes, strides and offsets.

use weightloom_layout::{Dims, Shape};

/// Shape, strides and offset of a tensor in its storage, in elements. A stride of
/// 0 repeats an element along its dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) shape: Shape,
    pub(crate) strides: Dims,
    pub(crate) offset: usize,
}

impl View {
    pub(crate) fn contiguous(shape: Shape) -> Self {
        let strides = shape.strides();
        Self { shape, strides, offset: 0 }
    }

    /// Whether elements are contiguous in row-major order.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for dim in (0..self.shape.ndim()).rev() {
            if self.shape[dim] != 1 {
                if self.strides[dim] != expected {
                    return self.shape.volume() == 0;
                }
                expected *= self.shape[dim];
            }
        }
        true
    }

    pub(crate) fn permute(&self, order: &[usize]) -> Self {
        let dims: Dims = order.iter().map(|&dim| self.shape[dim]).collect();
        Self {
            shape: Shape::new(&dims).expect("a permutation of a valid shape"),
            strides: order.iter().map(|&dim| self.strides[dim]).collect(),
            offset: self.offset,
        }
    }

    pub(crate) fn narrow(&self, dim: usize, start: usize, length: usize) -> Self {
        let mut dims = Dims::from_slice(&self.shape);
        dims[dim] = length;
        Self {
            shape: Shape::new(&dims).expect("no larger than a valid shape"),
            strides: self.strides.clone(),
            offset: self.offset + start * self.strides[dim],
        }
    }

    /// This view repeated along dims of size 1 and new leading dims, or `None`
    /// if the shapes do not allow it.
    pub(crate) fn expand(&self, shape: &Shape) -> Option<Self> {
        let lead = shape.ndim().checked_sub(self.shape.ndim())?;
        let mut strides = Dims::from_elem(0, shape.ndim());
        for dim in 0..self.shape.ndim() {
            if self.shape[dim] == shape[lead + dim] {
                strides[lead + dim] = self.strides[dim];
            } else if self.shape[dim] != 1 {
                return None;
            }
        }
        Some(Self { shape: shape.clone(), strides, offset: self.offset })
    }

    /// The same elements in another shape without moving them, or `None` if
    /// that needs a copy.
    pub(crate) fn reshape(&self, shape: &Shape) -> Option<Self> {
        if self.is_contiguous() {
            return Some(Self { offset: self.offset, ..Self::contiguous(shape.clone()) });
        }
        // Adding or removing dims of size 1 is always possible.
        let significant =
            |shape: &Shape| -> Vec<usize> { shape.iter().copied().filter(|&size| size != 1).collect() };
        if significant(&self.shape) != significant(shape) {
            return None;
        }
        let mut kept =
            (0..self.shape.ndim()).filter(|&dim| self.shape[dim] != 1).map(|dim| self.strides[dim]);
        let strides =
            shape.iter().map(|&size| if size == 1 { 0 } else { kept.next().unwrap_or(0) }).collect();
        Some(Self { shape: shape.clone(), strides, offset: self.offset })
    }
}

/// The shape that both shapes can be expanded to.
pub(crate) fn broadcast(a: &Shape, b: &Shape) -> Option<Shape> {
    let ndim = a.ndim().max(b.ndim());
    let size = |shape: &Shape, dim: usize| (dim + shape.ndim()).checked_sub(ndim).map_or(1, |dim| shape[dim]);
    let dims: Option<Dims> = (0..ndim)
        .map(|dim| match (size(a, dim), size(b, dim)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect();
    Shape::new(&dims?).ok()
}
