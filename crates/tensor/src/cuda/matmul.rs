//! Matrix products.

use bytemuck::{Pod, Zeroable};
use weightloom_cuda::{Arg, Grid};
use weightloom_layout::{DType, Shape};

use super::{Cuda, address, bytes, count, float, optional};
use crate::error::Result;
use crate::kernels::matmul::{MatmulKernels, batch_starts};
use crate::tensor::Tensor;

/// Rows and columns of a tile, as in the kernels.
const TILE: usize = 64;

/// The most tiles of rows, and of products, in one launch.
const MOST: usize = 65_535;

/// The strides of a matrix.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Matrix {
    pub(super) row: u64,
    pub(super) column: u64,
}

impl Matrix {
    /// Of the last two dims.
    pub(super) fn of(x: &Tensor) -> Self {
        let [.., row, column] = *x.strides() else { return Self { row: 0, column: 0 } };
        Self { row: row as u64, column: column as u64 }
    }

    pub(super) fn transposed(self) -> Self {
        Self { row: self.column, column: self.row }
    }
}

/// Sizes of a product, and where its operands are.
pub(super) struct Product<'a> {
    /// Rows, columns and depth.
    pub(super) sizes: [usize; 3],
    pub(super) operands: [&'a Tensor; 2],
    pub(super) matrices: [Matrix; 2],
    /// The first elements of both matrices of each batch, counted from those of the
    /// tensors.
    pub(super) starts: Vec<[u64; 2]>,
}

impl Cuda {
    /// Runs products into consecutive matrices of `out`, from `first` on.
    fn products(
        self,
        product: &Product<'_>,
        [bias, residual]: [Option<&Tensor>; 2],
        (out, first): (&Tensor, usize),
    ) -> Result<()> {
        let [m, n, _] = product.sizes;
        if m * n == 0 || self.try_library(product, [bias, residual], (out, first))? {
            return Ok(());
        }
        self.product_by_kernel(product, [bias, residual], (out, first))
    }

    /// The same by our own kernels.
    pub(super) fn product_by_kernel(
        self,
        product: &Product<'_>,
        [bias, residual]: [Option<&Tensor>; 2],
        (out, first): (&Tensor, usize),
    ) -> Result<()> {
        let op = "matmul";
        let [m, n, k] = product.sizes;
        let kernel = format!("matmul_{}", float(op, out.dtype())?);
        let size = out.dtype().size() as u64;
        let shifted = |base: Arg<'static>, elements: usize| match base {
            Arg::Address(address) => Arg::Address(address + elements as u64 * size),
            other => other,
        };
        let [a, b] = product.operands;
        let (a, b, bias) = (address(op, a)?, address(op, b)?, optional(op, bias)?);
        let (target, residual) = (address(op, out)?, optional(op, residual)?);
        for (part, starts) in product.starts.chunks(MOST).enumerate() {
            let flat: &[u64] = bytemuck::cast_slice(starts);
            let held = self.upload(DType::U64, flat)?;
            // Tiles of rows beyond the limit of a grid are further launches.
            for row in (0..m).step_by(MOST * TILE) {
                debug_assert!(row == 0 || product.starts.len() == 1, "checked by the caller");
                let rows = (m - row).min(MOST * TILE);
                let done = first + part * MOST * m * n + row * n;
                let args = [
                    shifted(target, done),
                    shifted(a, row * product.matrices[0].row as usize),
                    b,
                    bias,
                    shifted(residual, done),
                    address(op, &held)?,
                    count(rows),
                    count(n),
                    count(k),
                    bytes(&product.matrices[0]),
                    bytes(&product.matrices[1]),
                ];
                let blocks = [n.div_ceil(TILE) as u32, rows.div_ceil(TILE) as u32, starts.len() as u32];
                self.launch(&kernel, Grid::new(blocks, 256), rows * n, &args)?;
            }
        }
        Ok(())
    }
}

impl MatmulKernels for Cuda {
    fn matmul(
        &self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor> {
        let batch = shape.ndim() - 2;
        let (m, n, k) = (shape[batch], shape[batch + 1], a.shape()[batch + 1]);
        let out = self.empty(a.dtype(), shape)?;
        if shape.volume() == 0 {
            return Ok(out);
        }
        let starts = batch_starts(&shape[..batch], [a.view(), b.view()]);
        let matrices = [Matrix::of(a), Matrix::of(b)];
        if m > MOST * TILE && starts.len() > 1 {
            // Too many rows for one launch: one batch after the other.
            for (number, start) in starts.into_iter().enumerate() {
                let product = Product { sizes: [m, n, k], operands: [a, b], matrices, starts: vec![start] };
                self.products(&product, [bias, residual], (&out, number * m * n))?;
            }
            return Ok(out);
        }
        let product = Product { sizes: [m, n, k], operands: [a, b], matrices, starts };
        self.products(&product, [bias, residual], (&out, 0))?;
        Ok(out)
    }

    fn grouped_matmul(&self, x: &Tensor, weights: &Tensor, groups: &[usize]) -> Result<Tensor> {
        let (k, n) = (x.shape()[1], weights.shape()[2]);
        let out = self.empty(x.dtype(), &Shape::new(&[x.shape()[0], n])?)?;
        let mut first = 0;
        for (number, &rows) in groups.iter().enumerate() {
            let start = [(first * k) as u64, (number * weights.strides()[0]) as u64];
            let product = Product {
                sizes: [rows, n, k],
                operands: [x, weights],
                matrices: [Matrix::of(x), Matrix::of(weights)],
                starts: vec![start],
            };
            self.products(&product, [None, None], (&out, first * n))?;
            first += rows;
        }
        Ok(out)
    }

    fn grouped_matmul_gradient(&self, x: &Tensor, gradient: &Tensor, groups: &[usize]) -> Result<Tensor> {
        let (k, n) = (x.shape()[1], gradient.shape()[1]);
        let out = self.empty(x.dtype(), &Shape::new(&[groups.len(), k, n])?)?;
        let mut first = 0;
        for (number, &rows) in groups.iter().enumerate() {
            let product = Product {
                sizes: [k, n, rows],
                operands: [x, gradient],
                matrices: [Matrix::of(x).transposed(), Matrix::of(gradient)],
                starts: vec![[(first * k) as u64, (first * n) as u64]],
            };
            self.products(&product, [None, None], (&out, number * k * n))?;
            first += rows;
        }
        Ok(out)
    }
}
