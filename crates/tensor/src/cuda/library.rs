//! Large products of halves by cuBLASLt.
//!
//! Both compute an element as one chain over the depth, so the library is used only
//! for speed. That this holds on a machine is tested with the first product; where it
//! does not, our own kernels compute everything.

use std::sync::OnceLock;

use weightloom_cuda::{
    Arg, CudaError, MatrixProduct, Orientation, PRODUCT_ALIGNMENT, ProductDType, ProductResult, Products,
};
use weightloom_layout::{DType, Shape};

use super::matmul::{Matrix, Product};
use super::{Cuda, address};
use crate::error::Result;
use crate::random::Stream;
use crate::tensor::Tensor;

/// With fewer rows, our own kernel is used.
const FEWEST_ROWS: usize = 64;

/// Who computes large products of halves on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProductLibrary {
    /// cuBLASLt, whose bits are those of our kernels: its file and version.
    Used {
        /// The file.
        path: String,
        /// Its version.
        version: String,
    },
    /// Our kernels, because cuBLASLt gave other bits.
    OtherBits {
        /// The file.
        path: String,
        /// Its version.
        version: String,
    },
    /// Our kernels, because there is no cuBLASLt that can be used: why.
    Missing(CudaError),
}

impl Matrix {
    /// How a library reads it, and its stride.
    fn orientation(self) -> Option<(Orientation, u64)> {
        match self {
            Self { row, column: 1 } => Some((Orientation::Rows, row)),
            Self { row: 1, column } => Some((Orientation::Columns, column)),
            _ => None,
        }
    }
}

/// The product as the library takes it. The sizes are those for which all of its
/// algorithms that we allow have the bits of our kernels, and can be chosen at all.
fn described(of_result: DType, product: &Product<'_>) -> Option<MatrixProduct> {
    let [rows, columns, depth] = product.sizes;
    let of_operands = product.operands[0].dtype();
    let result = if of_result == of_operands { ProductResult::Rounded } else { ProductResult::F32 };
    let dtype = match of_operands {
        DType::Bf16 => ProductDType::Bf16,
        DType::F16 => ProductDType::F16,
        _ => return None,
    };
    if rows < FEWEST_ROWS || columns == 0 || columns % 8 != 0 || depth == 0 || depth % 16 != 0 {
        return None;
    }
    let [(of_a, a), (of_b, b)] = [product.matrices[0].orientation()?, product.matrices[1].orientation()?];
    let strides = [a, b];
    if strides.iter().any(|stride| *stride == 0 || stride % 8 != 0) {
        return None;
    }
    let [rows, columns, depth] = [rows, columns, depth].map(|size| size as u64);
    Some(MatrixProduct { dtype, result, rows, columns, depth, orientations: [of_a, of_b], strides })
}

impl Cuda {
    /// Runs a product by the library, if that has the bits of our kernels. Returns
    /// whether it did.
    pub(super) fn try_library(
        self,
        product: &Product<'_>,
        [bias, residual]: [Option<&Tensor>; 2],
        (out, first): (&Tensor, usize),
    ) -> Result<bool> {
        if bias.is_some() || described(out.dtype(), product).is_none() {
            return Ok(false);
        }
        if self.gpu()?.products() == Products::Kernels {
            return Ok(false);
        }
        match self.product_library()? {
            ProductLibrary::Used { .. } => self.product_by_library(product, residual, (out, first)),
            ProductLibrary::OtherBits { .. } | ProductLibrary::Missing(_) => Ok(false),
        }
    }

    fn product_by_library(
        self,
        product: &Product<'_>,
        residual: Option<&Tensor>,
        (out, first): (&Tensor, usize),
    ) -> Result<bool> {
        let (Some(described), [[a, b]]) = (described(out.dtype(), product), &*product.starts) else {
            return Ok(false);
        };
        let place = |x: &Tensor, elements: u64| -> Result<u64> {
            match address("matmul", x)? {
                Arg::Address(address) => Ok(address + elements * x.dtype().size() as u64),
                _ => Ok(0),
            }
        };
        let [left, right] = product.operands;
        let residual = residual.map_or(Ok(0), |x| place(x, first as u64))?;
        let addresses = [place(out, first as u64)?, place(left, *a)?, place(right, *b)?, residual];
        if addresses.iter().any(|address| address % u64::from(PRODUCT_ALIGNMENT) != 0) {
            return Ok(false);
        }
        Ok(self.gpu()?.product(&described, addresses)?)
    }

    /// Finds the library and compares it with our kernels, once.
    pub(crate) fn product_library(self) -> Result<&'static ProductLibrary> {
        static FOUND: [OnceLock<ProductLibrary>; 256] = [const { OnceLock::new() }; 256];
        let cell = &FOUND[usize::from(self.0)];
        if let Some(found) = cell.get() {
            return Ok(found);
        }
        let gpu = self.gpu()?;
        let found = match gpu.library() {
            Ok(info) => {
                let (path, version) = (info.path.display().to_string(), info.version);
                match self.compare_library()? {
                    Comparison::Equal => ProductLibrary::Used { path, version },
                    Comparison::Different => ProductLibrary::OtherBits { path, version },
                    Comparison::None(dtype) => {
                        let reason = format!("{path} has no algorithm for products of {dtype}");
                        ProductLibrary::Missing(CudaError::NoLibrary { name: "cuBLASLt", reason })
                    }
                }
            }
            Err(error @ CudaError::NoRoom { .. }) => return Err(error.into()),
            Err(error) => ProductLibrary::Missing(error),
        };
        Ok(cell.get_or_init(|| found))
    }

    /// Compares products of the library with those of our kernels: of layers, of their
    /// inputs' gradients, and of their weights' gradients.
    fn compare_library(self) -> Result<Comparison> {
        const SIZES: [[usize; 3]; 3] = [[64, 128, 2048], [200, 256, 512], [520, 72, 304]];
        for dtype in [DType::Bf16, DType::F16] {
            let mut compared = 0;
            for (number, [m, n, k]) in SIZES.into_iter().enumerate() {
                let random = |rows: usize, columns: usize, part| {
                    let stream = Stream { seed: number as u64, number: part };
                    Tensor::normal(dtype, &[rows, columns], stream, 0).and_then(|x| self.receive(&x))
                };
                let shape = Shape::new(&[m, n])?;
                let residual = random(m, n, 0)?;
                let (rows, columns) = (random(m, k, 1)?, random(n, k, 2)?);
                let (rows_below, columns_below) = (random(k, m, 3)?, random(k, n, 4)?);
                let forms = [
                    ([&rows, &columns], [Matrix::of(&rows), Matrix::of(&columns).transposed()]),
                    ([&rows, &columns_below], [Matrix::of(&rows), Matrix::of(&columns_below)]),
                    (
                        [&rows_below, &columns_below],
                        [Matrix::of(&rows_below).transposed(), Matrix::of(&columns_below)],
                    ),
                ];
                for (operands, matrices) in forms {
                    let product = Product { sizes: [m, n, k], operands, matrices, starts: vec![[0, 0]] };
                    // Rounded, and as they are added to a sum.
                    for of_result in [dtype, DType::F32] {
                        let residual = residual.cast(of_result)?;
                        for residual in [None, Some(&residual)] {
                            let (library, own) =
                                (self.empty(of_result, &shape)?, self.empty(of_result, &shape)?);
                            if !self.product_by_library(&product, residual, (&library, 0))? {
                                continue;
                            }
                            self.product_by_kernel(&product, [None, residual], (&own, 0))?;
                            let bytes = |x: &Tensor| x.read_host(<[u8]>::to_vec);
                            if bytes(&library)? != bytes(&own)? {
                                return Ok(Comparison::Different);
                            }
                            compared += 1;
                        }
                    }
                }
            }
            if compared == 0 {
                return Ok(Comparison::None(dtype));
            }
        }
        Ok(Comparison::Equal)
    }
}

/// What a comparison of the library with our kernels found.
enum Comparison {
    Equal,
    Different,
    /// The library computed none of the products of a dtype.
    None(DType),
}
