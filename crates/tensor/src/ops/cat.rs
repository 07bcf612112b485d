//! Concatenation, splitting, padding and repetition.

use weightloom_layout::{Dims, Shape};

use super::{common, shape_mismatch};
use crate::backend::on;
use crate::error::{Result, TensorError};
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

struct Cat {
    dim: usize,
    sizes: Vec<usize>,
}

impl Function for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let operands: Vec<&Tensor> = inputs.iter().collect();
        let (device, _) = common("cat", &operands)?;
        let mut dims = Dims::from_slice(inputs[0].shape());
        dims[self.dim] = self.sizes.iter().sum();
        Ok(vec![on(device).cat(inputs, self.dim, &Shape::new(&dims)?)?])
    }

    fn backward(&self, _: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &gradients[0] else { return Ok(vec![None; self.sizes.len()]) };
        let mut start = 0;
        self.sizes
            .iter()
            .map(|&size| {
                let part = g.narrow(self.dim, start, size)?;
                start += size;
                Ok(Some(part))
            })
            .collect()
    }
}

impl Tensor {
    /// Concatenates tensors along a dim; other dims must be equal.
    pub fn cat(parts: &[&Self], dim: usize) -> Result<Self> {
        let Some(first) = parts.first() else {
            return Err(TensorError::Shapes { op: "cat", shapes: Vec::new() });
        };
        first.check_dim("cat", dim)?;
        let fits = |part: &&Self| {
            let (a, b) = (first.shape(), part.shape());
            a.ndim() == b.ndim() && (0..a.ndim()).all(|d| d == dim || a[d] == b[d])
        };
        if !parts.iter().all(fits) {
            return Err(shape_mismatch("cat", parts));
        }
        let sizes = parts.iter().map(|part| part.shape()[dim]).collect();
        let inputs: Vec<Self> = parts.iter().map(|&part| part.clone()).collect();
        apply_one(Cat { dim, sizes }, &inputs)
    }

    /// Stacks tensors of one shape along a new dim.
    pub fn stack(parts: &[&Self], dim: usize) -> Result<Self> {
        let raised = parts
            .iter()
            .map(|part| {
                if dim > part.shape().ndim() {
                    return Err(TensorError::Dim { op: "stack", dim, shape: part.shape().clone() });
                }
                let mut dims = Dims::from_slice(part.shape());
                dims.insert(dim, 1);
                part.reshape(&Shape::new(&dims)?)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Self::cat(&raised.iter().collect::<Vec<_>>(), dim)
    }

    /// Splits a dim into parts of these sizes. Nothing is copied.
    pub fn split(&self, sizes: &[usize], dim: usize) -> Result<Vec<Self>> {
        self.check_dim("split", dim)?;
        let end = sizes.iter().fold(0usize, |sum, &size| sum.saturating_add(size));
        if end != self.shape()[dim] {
            return Err(TensorError::Range { op: "split", dim, start: 0, end, shape: self.shape().clone() });
        }
        let mut start = 0;
        sizes
            .iter()
            .map(|&size| {
                let part = self.narrow(dim, start, size)?;
                start += size;
                Ok(part)
            })
            .collect()
    }

    /// Pads a dim with a value.
    pub fn pad(&self, dim: usize, before: usize, after: usize, value: f64) -> Result<Self> {
        self.check_dim("pad", dim)?;
        let filled = |size: usize| {
            let mut dims = Dims::from_slice(self.shape());
            dims[dim] = size;
            Self::full(value, self.dtype(), &dims, self.device())
        };
        Self::cat(&[&filled(before)?, self, &filled(after)?], dim)
    }

    /// Repeats the tensor along each dim. Extra leading counts add dims.
    pub fn repeat(&self, times: &[usize]) -> Result<Self> {
        let Some(lead) = times.len().checked_sub(self.shape().ndim()) else {
            return Err(TensorError::Dim { op: "repeat", dim: times.len(), shape: self.shape().clone() });
        };
        // Insert a dim of copies before each dim: [a, b] becomes [1, a, 1, b].
        let (mut apart, mut wide, mut whole) = (Dims::new(), Dims::new(), Dims::new());
        for (dim, &times) in times.iter().enumerate() {
            let size = if dim < lead { 1 } else { self.shape()[dim - lead] };
            apart.extend([1, size]);
            wide.extend([times, size]);
            whole.push(times.saturating_mul(size));
        }
        self.reshape(&Shape::new(&apart)?)?.expand(&Shape::new(&wide)?)?.reshape(&Shape::new(&whole)?)
    }
}
