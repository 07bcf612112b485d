//! Operations on tensors, each with its backward rule.

mod arithmetic;
mod attention;
mod matmul;
mod norm;
mod reduce;
mod rope;
mod rows;
mod views;

pub use attention::Attention;
pub use rope::RopeStyle;
pub use rows::CrossEntropy;

use shardloom_layout::{DType, Shape};

use crate::device::Device;
use crate::error::TensorError;
use crate::tensor::Tensor;

/// Checks that operands are on one device and of one dtype, and returns both.
fn common(op: &'static str, inputs: &[&Tensor]) -> Result<(Device, DType), TensorError> {
    let (device, dtype) = (inputs[0].device(), inputs[0].dtype());
    if inputs.iter().any(|input| input.device() != device) {
        let devices = inputs.iter().map(|input| input.device()).collect();
        return Err(TensorError::Devices { op, devices });
    }
    if inputs.iter().any(|input| input.dtype() != dtype) {
        let dtypes = inputs.iter().map(|input| input.dtype()).collect();
        return Err(TensorError::DTypes { op, dtypes });
    }
    Ok((device, dtype))
}

fn mismatch(op: &'static str, inputs: &[&Tensor]) -> TensorError {
    TensorError::Shapes { op, shapes: inputs.iter().map(|input| input.shape().clone()).collect() }
}

/// A gradient summed over the dims along which a tensor of `shape` was
/// repeated.
fn summed_to(gradient: &Tensor, shape: &Shape) -> Result<Tensor, TensorError> {
    if gradient.shape() == shape {
        return Ok(gradient.clone());
    }
    let lead = gradient.shape().ndim() - shape.ndim();
    let repeated: Vec<usize> = (0..gradient.shape().ndim())
        .filter(|&dim| dim < lead || (shape[dim - lead] == 1 && gradient.shape()[dim] != 1))
        .collect();
    gradient.sum(&repeated)?.reshape(shape)
}
