//! Reductions of rows.

use weightloom_cuda::Arg;
use weightloom_layout::{DType, Shape};

use super::{Cuda, address, count, each, float, rows, wide};
use crate::error::Result;
use crate::kernels::reduce::{ReduceKernels, Reduction};
use crate::tensor::Tensor;

/// Elements that a block adds up at a time, as in the kernels.
const PIECE: usize = 16_384;

/// What is added up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Addend {
    Elements,
    Squares,
}

impl Cuda {
    /// The sums of the pieces of a contiguous tensor, in the type of the computation.
    pub(super) fn sums_of_pieces(self, op: &'static str, x: &Tensor, addend: Addend) -> Result<Tensor> {
        let (n, dtype) = (x.shape().volume(), x.dtype());
        let kernel = format!("sum_pieces_{}", float(op, dtype)?);
        let pieces = n.div_ceil(PIECE);
        let sums = self.empty(wide(dtype), &Shape::new(&[pieces])?)?;
        let squares = Arg::I32(i32::from(addend == Addend::Squares));
        let args = [address(op, &sums)?, address(op, x)?, count(n), squares];
        self.launch(&kernel, rows(pieces), pieces, &args)?;
        Ok(sums)
    }

    /// The sum of a list of wide numbers by one block, divided and rounded into a new
    /// tensor of one element.
    pub(super) fn add_in_order(
        self,
        op: &'static str,
        parts: &Tensor,
        divisor: f64,
        dtype: DType,
        shape: &Shape,
    ) -> Result<Tensor> {
        let out = self.empty(dtype, shape)?;
        let parts_count = count(parts.shape().volume());
        let args = [address(op, &out)?, address(op, parts)?, parts_count, Arg::F64(divisor)];
        let kernel = format!("add_in_order_{}", float(op, dtype)?);
        self.launch(&kernel, rows(1), 1, &args)?;
        Ok(out)
    }
}

impl ReduceKernels for Cuda {
    fn reduce(&self, op: Reduction, x: &Tensor, row: usize, shape: &Shape) -> Result<Tensor> {
        let (name, dtype, n) = (op.name(), x.dtype(), shape.volume());
        let kernel = format!("reduce_{}", float(name, dtype)?);
        if n == 1 && op == Reduction::Sum {
            // A single row: pieces in parallel, then their sum in order.
            let sums = self.sums_of_pieces(name, x, Addend::Elements)?;
            return self.add_in_order(name, &sums, 1.0, dtype, shape);
        }
        let out = self.empty(dtype, shape)?;
        let code = match op {
            Reduction::Sum => 0,
            Reduction::Max => 1,
            Reduction::Min => 2,
            Reduction::Product => 3,
            Reduction::Norm => 4,
            Reduction::LogSumExp => 5,
        };
        let args = [address(name, &out)?, address(name, x)?, count(n), count(row), Arg::I32(code)];
        self.launch(&kernel, rows(n), n, &args)?;
        Ok(out)
    }

    fn product_gradient(&self, x: &Tensor, gradient: &Tensor, row: usize) -> Result<Tensor> {
        let (op, n) = ("prod", x.shape().volume());
        let kernel = format!("product_gradient_{}", float(op, x.dtype())?);
        let (out, after) = (self.empty(x.dtype(), x.shape())?, self.empty(wide(x.dtype()), x.shape())?);
        let number = n / row.max(1);
        let args = [
            address(op, &out)?,
            address(op, x)?,
            address(op, gradient)?,
            address(op, &after)?,
            count(number),
            count(row),
        ];
        self.launch(&kernel, each(number), n, &args)?;
        Ok(out)
    }
}
