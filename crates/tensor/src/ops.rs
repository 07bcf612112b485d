//! Operations on tensors, each with its backward rule.

mod assign;
mod attention;
mod cat;
mod comparison;
mod cross_entropy;
mod elementwise;
mod index;
mod matmul;
mod norm;
mod reduce;
mod rope;
mod softmax;
mod sort;
mod to;
mod views;

pub use attention::Attention;
pub use cross_entropy::CrossEntropy;
pub use rope::RopeStyle;

use weightloom_layout::{DType, Shape};

use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;
use crate::view::broadcast;

/// Checks that operands are on one device, and returns it.
pub(crate) fn check_same_device(op: &'static str, inputs: &[&Tensor]) -> Result<Device> {
    let device = inputs[0].device();
    if inputs.iter().any(|input| input.device() != device) {
        let devices = inputs.iter().map(|input| input.device()).collect();
        return Err(TensorError::Devices { op, devices });
    }
    Ok(device)
}

/// Checks that operands are on one device and of one dtype, and returns both.
pub(crate) fn common(op: &'static str, inputs: &[&Tensor]) -> Result<(Device, DType)> {
    let (device, dtype) = (check_same_device(op, inputs)?, inputs[0].dtype());
    if inputs.iter().any(|input| input.dtype() != dtype) {
        let dtypes = inputs.iter().map(|input| input.dtype()).collect();
        return Err(TensorError::DTypes { op, dtypes });
    }
    Ok((device, dtype))
}

/// Checks that a dtype is a float that kernels compute with.
fn check_float(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F64 | DType::F32 | DType::Bf16 | DType::F16 => Ok(()),
        dtype => Err(TensorError::DType { op, dtype }),
    }
}

/// Checks that a tensor holds indices.
fn indices(op: &'static str, x: &Tensor) -> Result<()> {
    if x.dtype() == DType::I64 { Ok(()) } else { Err(TensorError::DType { op, dtype: x.dtype() }) }
}

fn shape_mismatch(op: &'static str, inputs: &[&Tensor]) -> TensorError {
    TensorError::Shapes { op, shapes: inputs.iter().map(|input| input.shape().clone()).collect() }
}

/// Expands operands to their broadcast shape. Nothing is copied.
fn broadcast_all<const N: usize>(op: &'static str, inputs: [&Tensor; N]) -> Result<[Tensor; N]> {
    let refused = || shape_mismatch(op, &inputs);
    let shape = inputs
        .iter()
        .try_fold(Shape::default(), |shape, input| broadcast(&shape, input.shape()))
        .ok_or_else(refused)?;
    let mut expanded = inputs.map(Tensor::detach);
    for input in &mut expanded {
        *input = input.with_view(input.view().expand(&shape).ok_or_else(refused)?);
    }
    Ok(expanded)
}

/// Sums a gradient over the dims along which a tensor of `shape` was broadcast.
fn sum_to_shape(gradient: Tensor, shape: &Shape) -> Result<Tensor> {
    if gradient.shape() == shape {
        return Ok(gradient);
    }
    let lead = gradient.shape().ndim() - shape.ndim();
    let repeated: Vec<usize> = (0..gradient.shape().ndim())
        .filter(|&dim| dim < lead || (shape[dim - lead] == 1 && gradient.shape()[dim] != 1))
        .collect();
    gradient.sum(&repeated)?.reshape(shape)
}
