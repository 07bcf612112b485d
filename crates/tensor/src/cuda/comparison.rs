//! Comparisons and selection.

use weightloom_cuda::Arg;
use weightloom_layout::DType;

use super::{Cuda, Strides, address, bytes, count, each, size_suffix, suffix};
use crate::error::{Result, TensorError};
use crate::kernels::comparison::{Comparison, ComparisonKernels};
use crate::tensor::Tensor;

/// The kernels' type for elements that can be ordered: bools are bytes.
pub(super) fn ordered(op: &'static str, dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::Bool => Ok("u8"),
        DType::F8E4M3 | DType::F8E5M2 => Err(TensorError::DType { op, dtype }),
        dtype => Ok(suffix(dtype)),
    }
}

impl ComparisonKernels for Cuda {
    fn compare(&self, op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (name, n) = (op.name(), a.shape().volume());
        let kernel = format!("compare_{}", ordered(name, a.dtype())?);
        let out = self.empty(DType::Bool, a.shape())?;
        let strides = Strides::new(a.shape(), [a.strides(), b.strides()]);
        let code = match op {
            Comparison::Equal => 0,
            Comparison::Different => 1,
            Comparison::Less => 2,
            Comparison::LessOrEqual => 3,
            Comparison::Greater => 4,
            Comparison::GreaterOrEqual => 5,
        };
        let args = [
            address(name, &out)?,
            address(name, a)?,
            address(name, b)?,
            count(n),
            bytes(&strides),
            Arg::I32(code),
        ];
        self.launch(&kernel, each(n), n, &args)?;
        Ok(out)
    }

    fn select(&self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (op, n) = ("select", a.shape().volume());
        let out = self.empty(a.dtype(), a.shape())?;
        let strides = Strides::new(a.shape(), [condition.strides(), a.strides(), b.strides()]);
        let args = [
            address(op, &out)?,
            address(op, condition)?,
            address(op, a)?,
            address(op, b)?,
            count(n),
            bytes(&strides),
        ];
        self.launch(&format!("select_{}", size_suffix(a.dtype())), each(n), n, &args)?;
        Ok(out)
    }
}
