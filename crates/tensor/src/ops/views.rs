//! The same elements, seen otherwise.

use weightloom_layout::{Dims, Shape};

use super::{mismatch, summed_to};
use crate::error::TensorError;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

enum ViewFunction {
    Reshape { from: Shape, to: Shape },
    Permute { order: Dims },
    Narrow { from: Shape, dim: usize, start: usize, length: usize },
    Expand { from: Shape, to: Shape },
}

impl Function for ViewFunction {
    fn name(&self) -> &'static str {
        match self {
            Self::Reshape { .. } => "reshape",
            Self::Permute { .. } => "permute",
            Self::Narrow { .. } => "narrow",
            Self::Expand { .. } => "expand",
        }
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let x = &inputs[0];
        let seen = match self {
            Self::Reshape { to, .. } => match x.view().reshape(to) {
                Some(view) => x.seen_as(view),
                None => {
                    let packed = x.packed("reshape")?;
                    packed.seen_as(crate::view::View::contiguous(to.clone()))
                }
            },
            Self::Permute { order } => x.seen_as(x.view().permute(order)),
            Self::Narrow { dim, start, length, .. } => x.seen_as(x.view().narrow(*dim, *start, *length)),
            Self::Expand { to, .. } => {
                let refused =
                    || TensorError::Shapes { op: "expand", shapes: vec![x.shape().clone(), to.clone()] };
                x.seen_as(x.view().expand(to).ok_or_else(refused)?)
            }
        };
        Ok(vec![seen])
    }

    fn backward(
        &self,
        _: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let of_x = match self {
            Self::Reshape { from, .. } => gradient.reshape(from)?,
            Self::Permute { order } => {
                let mut back = Dims::from_elem(0, order.len());
                order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
                gradient.permute(&back)?
            }
            Self::Narrow { from, dim, start, length } => {
                gradient.pad(*dim, *start, from[*dim] - start - length, 0.0)?
            }
            Self::Expand { from, .. } => summed_to(gradient.clone(), from)?,
        };
        Ok(vec![Some(of_x)])
    }
}

impl Tensor {
    fn viewed(&self, function: ViewFunction) -> Result<Self, TensorError> {
        apply_one(function, std::slice::from_ref(self))
    }

    /// The same elements in another shape; copied only if strides do not allow
    /// otherwise.
    pub fn reshape(&self, shape: &Shape) -> Result<Self, TensorError> {
        if shape.volume() != self.shape().volume() {
            return Err(TensorError::Shapes {
                op: "reshape",
                shapes: vec![self.shape().clone(), shape.clone()],
            });
        }
        self.viewed(ViewFunction::Reshape { from: self.shape().clone(), to: shape.clone() })
    }

    /// The dims in another order. Nothing is copied.
    pub fn permute(&self, order: &[usize]) -> Result<Self, TensorError> {
        order.iter().try_for_each(|&dim| self.check_dim("permute", dim))?;
        let mut sorted = Dims::from_slice(order);
        sorted.sort_unstable();
        if sorted.iter().enumerate().any(|(place, &dim)| place != dim) || sorted.len() != self.shape().ndim()
        {
            return Err(mismatch("permute", &[self]));
        }
        self.viewed(ViewFunction::Permute { order: Dims::from_slice(order) })
    }

    /// Two dims exchanged. Nothing is copied.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self, TensorError> {
        self.check_dim("transpose", a.max(b))?;
        let mut order: Dims = (0..self.shape().ndim()).collect();
        order.swap(a, b);
        self.permute(&order)
    }

    /// Some of the indices of a dim. Nothing is copied.
    pub fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Self, TensorError> {
        self.check_dim("narrow", dim)?;
        let end = start.saturating_add(length);
        if end > self.shape()[dim] {
            return Err(TensorError::Range { op: "narrow", dim, start, end, shape: self.shape().clone() });
        }
        self.viewed(ViewFunction::Narrow { from: self.shape().clone(), dim, start, length })
    }

    /// Repeated along dims of size 1 and new leading dims. Nothing is copied.
    pub fn expand(&self, shape: &Shape) -> Result<Self, TensorError> {
        self.viewed(ViewFunction::Expand { from: self.shape().clone(), to: shape.clone() })
    }
}
