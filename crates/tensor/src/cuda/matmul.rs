//! Matrix products.

use bytemuck::{Pod, Zeroable};
use weightloom_cuda::{Arg, Grid};
use weightloom_layout::{DType, Shape};

use super::{Cuda, address, bytes, count, float, optional, wide};
use crate::error::Result;
use crate::kernels::matmul::{MatmulKernels, batch_starts};
use crate::tensor::Tensor;

/// Rows and columns of a tile, as in the kernels.
const TILE: usize = 64;

/// The most tiles of rows, and of products, in one launch.
const MOST: usize = 65_535;

/// Rows of a batch that are summed at a time for the gradient of a narrow weight.
const SEGMENT_ROWS: usize = 512;

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
        let [a, b] = product.operands;
        let kind = if a.dtype() == out.dtype() { "" } else { "wide_" };
        let kernel = format!("matmul_{kind}{}", float(op, a.dtype())?);
        let shifted = |base: Arg<'static>, elements: usize, dtype: DType| match base {
            Arg::Address(address) => Arg::Address(address + (elements * dtype.size()) as u64),
            other => other,
        };
        let (of_a, of_out) = (a.dtype(), out.dtype());
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
                    shifted(target, done, of_out),
                    shifted(a, row * product.matrices[0].row as usize, of_a),
                    b,
                    bias,
                    shifted(residual, done, of_out),
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

/// Whether the batches are consecutive rows of one matrix, times the same matrix.
fn are_rows_of_one(starts: &[[u64; 2]], rows: usize, matrix: Matrix) -> bool {
    starts
        .windows(2)
        .all(|pair| pair[0][1] == pair[1][1] && pair[1][0] == pair[0][0] + rows as u64 * matrix.row)
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
        if starts.len() > 1 && are_rows_of_one(&starts, m, matrices[0]) {
            // One matrix times all rows of a batch.
            let sizes = [m * starts.len(), n, k];
            let product = Product { sizes, operands: [a, b], matrices, starts: vec![starts[0]] };
            self.products(&product, [bias, residual], (&out, 0))?;
            return Ok(out);
        }
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

    /// Of a narrow weight, such as those of adapters, there are too few elements to
    /// occupy a GPU: the rows are summed in segments, and these in order.
    fn weight_gradient(&self, gradient: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (rows, n, k) = (gradient.shape()[0], gradient.shape()[1], x.shape()[1]);
        let segments = rows / SEGMENT_ROWS;
        let is_narrow = n.min(k) < TILE && gradient.dtype().size() == 2 && n * k > 0;
        if !is_narrow || segments < 2 {
            return gradient.transpose(0, 1)?.matmul(x);
        }
        let of_sum = wide(x.dtype());
        // The last segment has the rest as well.
        let whole = segments - 1;
        let sums = self.empty(of_sum, &Shape::new(&[segments, n, k])?)?;
        let [of_gradient, of_x] = [gradient, x].map(|x| Matrix::of(x).row);
        let start = |segment: usize| [of_gradient, of_x].map(|row| (segment * SEGMENT_ROWS) as u64 * row);
        for (first, count, depth) in [(0, whole, SEGMENT_ROWS), (whole, 1, rows - whole * SEGMENT_ROWS)] {
            let product = Product {
                sizes: [n, k, depth],
                operands: [gradient, x],
                matrices: [Matrix::of(gradient).transposed(), Matrix::of(x)],
                starts: (first..first + count).map(start).collect(),
            };
            self.product_by_kernel(&product, [None, None], (&sums, first * n * k))?;
        }
        self.add_shares(&sums, [segments, n * k, 0], x.dtype(), &Shape::new(&[n, k])?)
    }

    fn add_product(&self, sum: Option<Tensor>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (m, n, k) = (a.shape()[0], b.shape()[1], a.shape()[1]);
        let of_sum = wide(a.dtype());
        let product = Product {
            sizes: [m, n, k],
            operands: [a, b],
            matrices: [Matrix::of(a), Matrix::of(b)],
            starts: vec![[0, 0]],
        };
        match sum {
            Some(sum) => {
                let sum = self.owned("matmul", sum)?;
                self.products(&product, [None, Some(&sum)], (&sum, 0))?;
                Ok(sum)
            }
            None => {
                let out = self.empty(of_sum, &Shape::new(&[m, n])?)?;
                self.products(&product, [None, None], (&out, 0))?;
                Ok(out)
            }
        }
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
