//! RMS norm and layer norm of rows.

use weightloom_cuda::{Arg, Grid};
use weightloom_layout::{DType, Shape};

use super::{Cuda, THREADS, address, count, float, optional, rows, wide};
use crate::error::Result;
use crate::kernels::norm::NormKernels;
use crate::tensor::Tensor;

/// Rows whose shares of the gradient of a weight are summed together, as in the
/// kernels.
const ROWS: usize = 16;

/// Columns of shares that a block adds up.
const SHARE_COLUMNS: usize = 32;

/// Kernels for rows of a length: how many packs of 16 bytes each thread keeps in
/// registers. All give the same bits.
fn held(dtype: DType, row: usize) -> usize {
    let packs = row * dtype.size() / 16;
    match packs.div_ceil(THREADS as usize) {
        0 | 1 => 1,
        2 => 2,
        _ => 4,
    }
}

/// Whether the mean is subtracted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Norm {
    Rms,
    Layer,
}

impl Norm {
    fn name(self) -> &'static str {
        match self {
            Self::Rms => "rms_norm",
            Self::Layer => "layer_norm",
        }
    }

    fn code(self) -> Arg<'static> {
        Arg::I32(i32::from(self == Self::Layer))
    }
}

impl Cuda {
    fn norm(
        self,
        norm: Norm,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let (op, row, n) = (norm.name(), weight.shape().volume(), x.shape().volume());
        let kernel = format!("norm_{}_{}", float(op, x.dtype())?, held(x.dtype(), row));
        let (out, number) = (self.empty(x.dtype(), x.shape())?, n / row.max(1));
        let args = [
            address(op, &out)?,
            address(op, x)?,
            address(op, weight)?,
            optional(op, bias)?,
            count(number),
            count(row),
            Arg::F64(eps),
            norm.code(),
        ];
        self.launch(&kernel, rows(number), n, &args)?;
        Ok(out)
    }

    /// The gradients of `x`, the weight, and the bias of a layer norm.
    fn norm_gradient(
        self,
        norm: Norm,
        [x, weight]: [&Tensor; 2],
        gradient: Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let (op, row, n, dtype) = (norm.name(), weight.shape().volume(), x.shape().volume(), x.dtype());
        let name = float(op, dtype)?;
        let number = n / row.max(1);
        let chunks = number.div_ceil(ROWS);
        let stride = if norm == Norm::Layer { 2 * row } else { row };
        let shares = self.empty(wide(dtype), &Shape::new(&[chunks, stride])?)?;
        let reused = self.reuse(op, gradient)?;
        let args = [
            address(op, &reused.out)?,
            address(op, &shares)?,
            address(op, x)?,
            address(op, weight)?,
            reused.source,
            count(number),
            count(row),
            Arg::F64(eps),
            norm.code(),
        ];
        let grid = Grid::new([chunks as u32, 1, 1], THREADS);
        self.launch(&format!("norm_gradient_{name}_{}", held(dtype, row)), grid, n, &args)?;
        let added = |offset: usize| -> Result<Tensor> {
            let out = self.empty(dtype, weight.shape())?;
            let args = [
                address(op, &out)?,
                address(op, &shares)?,
                count(chunks),
                count(stride),
                count(offset),
                count(row),
            ];
            let grid = Grid::new([row.div_ceil(SHARE_COLUMNS) as u32, 1, 1], THREADS);
            self.launch(&format!("add_shares_{name}"), grid, row, &args)?;
            Ok(out)
        };
        let of_bias = (norm == Norm::Layer).then(|| added(row)).transpose()?;
        Ok((reused.out, added(0)?, of_bias))
    }
}

impl NormKernels for Cuda {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        self.norm(Norm::Rms, x, weight, None, eps)
    }

    fn rms_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 2]> {
        let (of_x, of_weight, _) = self.norm_gradient(Norm::Rms, [x, weight], gradient, eps)?;
        Ok([of_x, of_weight])
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
        self.norm(Norm::Layer, x, weight, Some(bias), eps)
    }

    fn layer_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 3]> {
        let (of_x, of_weight, of_bias) = self.norm_gradient(Norm::Layer, [x, weight], gradient, eps)?;
        let of_bias = of_bias.map_or_else(|| self.empty(weight.dtype(), weight.shape()), Ok)?;
        Ok([of_x, of_weight, of_bias])
    }
}
