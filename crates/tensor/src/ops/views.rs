//! Views: reshape, permute, narrow and expand.

use weightloom_layout::{Dims, Shape};

use super::{shape_mismatch, sum_to_shape};
use crate::error::{Result, TensorError};
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

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = &inputs[0];
        let seen = match self {
            Self::Reshape { to, .. } => match x.view().reshape(to) {
                Some(view) => x.with_view(view),
                None => {
                    let packed = x.contiguous("reshape")?;
                    packed.with_view(crate::view::View::contiguous(to.clone()))
                }
            },
            Self::Permute { order } => x.with_view(x.view().permute(order)),
            Self::Narrow { dim, start, length, .. } => x.with_view(x.view().narrow(*dim, *start, *length)),
            Self::Expand { to, .. } => {
                let refused =
                    || TensorError::Shapes { op: "expand", shapes: vec![x.shape().clone(), to.clone()] };
                x.with_view(x.view().expand(to).ok_or_else(refused)?)
            }
        };
        Ok(vec![seen])
    }

    fn backward(&self, _: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
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
            Self::Expand { from, .. } => sum_to_shape(gradient.clone(), from)?,
        };
        Ok(vec![Some(of_x)])
    }

    fn is_linear(&self, _: &Context) -> bool {
        true
    }
}

impl Tensor {
    fn viewed(&self, function: ViewFunction) -> Result<Self> {
        apply_one(function, std::slice::from_ref(self))
    }

    /// The same elements in another shape; copied only if the strides require it.
    pub fn reshape(&self, shape: &Shape) -> Result<Self> {
        if shape.volume() != self.shape().volume() {
            return Err(TensorError::Shapes {
                op: "reshape",
                shapes: vec![self.shape().clone(), shape.clone()],
            });
        }
        self.viewed(ViewFunction::Reshape { from: self.shape().clone(), to: shape.clone() })
    }

    /// Permutes the dims. Nothing is copied.
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        order.iter().try_for_each(|&dim| self.check_dim("permute", dim))?;
        let mut sorted = Dims::from_slice(order);
        sorted.sort_unstable();
        if sorted.iter().enumerate().any(|(place, &dim)| place != dim) || sorted.len() != self.shape().ndim()
        {
            return Err(shape_mismatch("permute", &[self]));
        }
        self.viewed(ViewFunction::Permute { order: Dims::from_slice(order) })
    }

    /// Swaps two dims. Nothing is copied.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.check_dim("transpose", a.max(b))?;
        let mut order: Dims = (0..self.shape().ndim()).collect();
        order.swap(a, b);
        self.permute(&order)
    }

    /// A range of a dim. Nothing is copied.
    pub fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Self> {
        self.check_dim("narrow", dim)?;
        let end = start.saturating_add(length);
        if end > self.shape()[dim] {
            return Err(TensorError::Range { op: "narrow", dim, start, end, shape: self.shape().clone() });
        }
        self.viewed(ViewFunction::Narrow { from: self.shape().clone(), dim, start, length })
    }

    /// Broadcasts dims of size 1 and new leading dims. Nothing is copied.
    pub fn expand(&self, shape: &Shape) -> Result<Self> {
        self.viewed(ViewFunction::Expand { from: self.shape().clone(), to: shape.clone() })
    }
}
