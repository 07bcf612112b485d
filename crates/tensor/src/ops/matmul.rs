//! Matrix products.

use shardloom_layout::{DType, Dims, Shape};

use super::{common, mismatch, summed_to};
use crate::device::Device;
use crate::error::TensorError;
use crate::kernels::matmul::{Finish, matmul};
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;
use crate::view::{View, broadcast};

struct MatMul;

/// The views of both operands over a common batch, and the result's shape.
fn fit(a: &Tensor, b: &Tensor) -> Result<(View, View, Shape), TensorError> {
    let refused = || mismatch("matmul", &[a, b]);
    let (na, nb) = (a.shape().ndim(), b.shape().ndim());
    if na < 2 || nb < 2 || a.shape()[na - 1] != b.shape()[nb - 2] {
        return Err(refused());
    }
    let batch = |tensor: &Tensor| Shape::new(&tensor.shape()[..tensor.shape().ndim() - 2]);
    let batch = broadcast(&batch(a)?, &batch(b)?).ok_or_else(refused)?;
    let with_batch = |rows: usize, columns: usize| -> Result<Shape, TensorError> {
        let dims: Dims = batch.iter().copied().chain([rows, columns]).collect();
        Ok(Shape::new(&dims)?)
    };
    let (m, k, n) = (a.shape()[na - 2], a.shape()[na - 1], b.shape()[nb - 1]);
    let view_a = a.view().expand(&with_batch(m, k)?).ok_or_else(refused)?;
    let view_b = b.view().expand(&with_batch(k, n)?).ok_or_else(refused)?;
    Ok((view_a, view_b, with_batch(m, n)?))
}

impl Function for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (device, dtype) = common("matmul", &[a, b])?;
        context.save(&[a, b]);
        let (view_a, view_b, shape) = fit(a, b)?;
        if device == Device::Meta {
            return Ok(vec![Tensor::meta(shape, dtype)]);
        }
        let product = match dtype {
            DType::F64 => matmul::<f64>(a, &view_a, b, &view_b, &shape, &Finish::SET)?,
            DType::F32 => matmul::<f32>(a, &view_a, b, &view_b, &shape, &Finish::SET)?,
            DType::Bf16 => matmul::<half::bf16>(a, &view_a, b, &view_b, &shape, &Finish::SET)?,
            DType::F16 => matmul::<half::f16>(a, &view_a, b, &view_b, &shape, &Finish::SET)?,
            dtype => return Err(TensorError::DType { op: "matmul", dtype }),
        };
        Ok(vec![product])
    }

    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(g), [a, b]) = (&gradients[0], context.saved()) else { return Ok(vec![None, None]) };
        let transposed = |x: &Tensor| x.transpose(x.shape().ndim() - 2, x.shape().ndim() - 1);
        let of_a = context.needs(0).then(|| summed_to(&g.matmul(&transposed(b)?)?, a.shape())).transpose()?;
        let of_b = context.needs(1).then(|| summed_to(&transposed(a)?.matmul(g)?, b.shape())).transpose()?;
        Ok(vec![of_a, of_b])
    }
}

impl Tensor {
    /// The matrix product of the last two dims; dims before them broadcast.
    /// Transposed operands are used as they are.
    pub fn matmul(&self, other: &Self) -> Result<Self, TensorError> {
        apply_one(MatMul, &[self.clone(), other.clone()])
    }
}
