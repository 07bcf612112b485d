//! Cumulative sum and sort.

use weightloom_cuda::Arg;
use weightloom_layout::DType;

use super::comparison::ordered;
use super::{Cuda, address, count, each, float, size_suffix};
use crate::error::Result;
use crate::kernels::sort::{Direction, Order, SortKernels};
use crate::tensor::Tensor;

impl SortKernels for Cuda {
    fn cumsum(&self, x: &Tensor, row: usize, direction: Direction) -> Result<Tensor> {
        let (op, n) = ("cumsum", x.shape().volume());
        let kernel = format!("cumsum_{}", float(op, x.dtype())?);
        let (out, number) = (self.empty(x.dtype(), x.shape())?, n / row.max(1));
        let reverse = Arg::I32(i32::from(direction == Direction::Reverse));
        let args = [address(op, &out)?, address(op, x)?, count(number), count(row), reverse];
        self.launch(&kernel, each(number), n, &args)?;
        Ok(out)
    }

    /// A merge sort: each pass makes sorted runs twice as long.
    fn sort(&self, x: &Tensor, row: usize, order: Order) -> Result<[Tensor; 2]> {
        let (op, n) = ("sort", x.shape().volume());
        let kernel = format!("merge_{}", ordered(op, x.dtype())?);
        let (row, number) = (row.max(1), n / row.max(1));
        let mut indices = self.empty(DType::I64, x.shape())?;
        self.launch("number_rows", each(n), n, &[address(op, &indices)?, count(number), count(row)])?;
        let descending = Arg::I32(i32::from(order == Order::Descending));
        let (mut other, mut width) = (self.empty(DType::I64, x.shape())?, 1);
        while width < row {
            let args = [
                address(op, &other)?,
                address(op, &indices)?,
                address(op, x)?,
                count(number),
                count(row),
                count(width),
                descending,
            ];
            self.launch(&kernel, each(n), n, &args)?;
            std::mem::swap(&mut indices, &mut other);
            width *= 2;
        }
        let sorted = self.empty(x.dtype(), x.shape())?;
        let args =
            [address(op, &sorted)?, address(op, x)?, address(op, &indices)?, count(number), count(row)];
        self.launch(&format!("take_rows_{}", size_suffix(x.dtype())), each(n), n, &args)?;
        Ok([sorted, indices])
    }
}
