//! RMS norm and layer norm of rows.

use weightloom_cuda::{Arg, Grid};
use weightloom_layout::{DType, Shape};

use super::{Cuda, THREADS, address, count, float, optional, wide};
use crate::error::Result;
use crate::kernels::norm::NormKernels;
use crate::tensor::Tensor;

/// Rows whose shares of the gradient of a weight are summed together, as in the
/// kernels.
const ROWS: usize = 16;

/// Columns of shares that a block adds up.
const SHARE_COLUMNS: usize = 32;

/// Packs of 16 bytes that the threads of a team hold of a row, as in the kernels.
const PACK: usize = 16;

/// The kernels for rows of a length.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowLength {
    Short,
    Medium,
    Long,
}

impl RowLength {
    fn of(dtype: DType, row: usize) -> Self {
        let packs = (row * dtype.size()).div_ceil(PACK);
        match packs.div_ceil(THREADS as usize) {
            0 | 1 => Self::Short,
            2 => Self::Medium,
            _ => Self::Long,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Medium => "medium",
            Self::Long => "long",
        }
    }

    /// A grid with a team of threads for each part of the work: a warp for short rows
    /// of an RMS norm, else a block.
    fn teams(self, norm: Norm, parts: usize) -> Grid {
        let are_warps = self == Self::Short && norm == Norm::Rms;
        let in_a_block = if are_warps { THREADS as usize / 32 } else { 1 };
        Grid::new([parts.div_ceil(in_a_block) as u32, 1, 1], THREADS)
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
}

impl Cuda {
    /// Sums of columns: of some chunks, a stride apart, from an offset on.
    pub(super) fn add_shares(
        self,
        shares: &Tensor,
        [chunks, stride, offset]: [usize; 3],
        dtype: DType,
        shape: &Shape,
    ) -> Result<Tensor> {
        let (op, columns) = ("add", shape.volume());
        let out = self.empty(dtype, shape)?;
        let args = [
            address(op, &out)?,
            address(op, shares)?,
            count(chunks),
            count(stride),
            count(offset),
            count(columns),
        ];
        let grid = Grid::new([columns.div_ceil(SHARE_COLUMNS) as u32, 1, 1], THREADS);
        self.launch(&format!("add_shares_{}", float(op, dtype)?), grid, columns, &args)?;
        Ok(out)
    }

    fn norm(
        self,
        norm: Norm,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let (op, row, n) = (norm.name(), weight.shape().volume(), x.shape().volume());
        let length = RowLength::of(x.dtype(), row);
        let kernel = format!("{op}_{}_{}", float(op, x.dtype())?, length.name());
        let (out, number) = (self.empty(x.dtype(), x.shape())?, n / row.max(1));
        let args = [
            address(op, &out)?,
            address(op, x)?,
            address(op, weight)?,
            optional(op, bias)?,
            count(number),
            Arg::I32(row as i32),
            Arg::F64(eps),
        ];
        self.launch(&kernel, length.teams(norm, number), n, &args)?;
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
            Arg::I32(row as i32),
            Arg::F64(eps),
        ];
        let length = RowLength::of(dtype, row);
        self.launch(
            &format!("{op}_gradient_{name}_{}", length.name()),
            length.teams(norm, chunks),
            n,
            &args,
        )?;
        let added = |offset: usize| self.add_shares(&shares, [chunks, stride, offset], dtype, weight.shape());
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
