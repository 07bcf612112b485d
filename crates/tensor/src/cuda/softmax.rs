//! Softmax of rows.

use weightloom_cuda::Arg;

use super::{Cuda, address, count, float, rows};
use crate::error::Result;
use crate::kernels::softmax::{Softmax, SoftmaxKernels};
use crate::tensor::Tensor;

fn code(op: Softmax) -> Arg<'static> {
    Arg::I32(i32::from(op == Softmax::Log))
}

impl SoftmaxKernels for Cuda {
    fn softmax(&self, op: Softmax, x: &Tensor, row: usize) -> Result<Tensor> {
        let (name, n) = (op.name(), x.shape().volume());
        let kernel = format!("softmax_{}", float(name, x.dtype())?);
        let (out, number) = (self.empty(x.dtype(), x.shape())?, n / row.max(1));
        let args = [address(name, &out)?, address(name, x)?, count(number), count(row), code(op)];
        self.launch(&kernel, rows(number), n, &args)?;
        Ok(out)
    }

    fn softmax_gradient(&self, op: Softmax, y: &Tensor, gradient: Tensor, row: usize) -> Result<Tensor> {
        let (name, n) = (op.name(), y.shape().volume());
        let kernel = format!("softmax_gradient_{}", float(name, y.dtype())?);
        let (reused, number) = (self.reuse(name, gradient)?, n / row.max(1));
        let args = [
            address(name, &reused.out)?,
            address(name, y)?,
            reused.source,
            count(number),
            count(row),
            code(op),
        ];
        self.launch(&kernel, rows(number), n, &args)?;
        Ok(reused.out)
    }
}
