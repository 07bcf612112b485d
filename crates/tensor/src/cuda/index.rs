//! Indexing.
//!
//! The host reads the indices, checks them, and orders additions to one place, so
//! that sums have one order.

use weightloom_layout::{DType, Shape};

use super::{Cuda, UNIT, address, count, each, float, is_aligned, optional, size_suffix};
use crate::error::Result;
use crate::kernels::index::{IndexKernels, around, check_indices, offsets};
use crate::tensor::Tensor;

/// The numbers that go to each place, in order, grouped by place.
struct Runs {
    places: Vec<u64>,
    /// Where each run starts in `order`, and its end.
    starts: Vec<u64>,
    order: Vec<u64>,
}

impl Runs {
    fn new(places: &[usize]) -> Self {
        let mut order: Vec<usize> = (0..places.len()).collect();
        // A stable sort: numbers with one place stay in order.
        order.sort_by_key(|&number| places[number]);
        let mut runs = Self { places: Vec::new(), starts: Vec::new(), order: Vec::new() };
        for run in order.chunk_by(|&a, &b| places[a] == places[b]) {
            runs.places.push(places[run[0]] as u64);
            runs.starts.push(runs.order.len() as u64);
            runs.order.extend(run.iter().map(|&number| number as u64));
        }
        runs.starts.push(runs.order.len() as u64);
        runs
    }
}

/// The offsets in `shape` that indices along a dim have, read and checked by the host.
fn places(op: &'static str, shape: &Shape, indices: &Tensor, dim: usize) -> Result<Vec<usize>> {
    let chosen = indices.to_vec::<i64>()?;
    Ok(offsets(op, &chosen, (shape, indices.shape()), dim)?.collect())
}

impl Cuda {
    /// Adds slices of `x` to those of `base`, or to zeros.
    fn add_runs(
        self,
        op: &'static str,
        base: Option<&Tensor>,
        x: &Tensor,
        out: &Tensor,
        (places, inner): (&[usize], usize),
    ) -> Result<()> {
        let runs = Runs::new(places);
        let n = runs.places.len() * inner;
        if n == 0 {
            return Ok(());
        }
        let targets = self.upload(DType::U64, &runs.places)?;
        let (starts, order) = (self.upload(DType::U64, &runs.starts)?, self.upload(DType::U64, &runs.order)?);
        let args = [
            address(op, out)?,
            optional(op, base)?,
            address(op, x)?,
            address(op, &targets)?,
            address(op, &starts)?,
            address(op, &order)?,
            count(runs.places.len()),
            count(inner),
        ];
        self.launch(&format!("add_runs_{}", float(op, x.dtype())?), each(n), n, &args)
    }
}

impl IndexKernels for Cuda {
    fn index_select(
        &self,
        op: &'static str,
        x: &Tensor,
        dim: usize,
        indices: &Tensor,
        shape: &Shape,
    ) -> Result<Tensor> {
        let [outer, size, inner] = around(x.shape(), dim);
        let places = indices.to_vec::<i64>()?;
        check_indices(op, &places, size)?;
        let out = self.empty(x.dtype(), shape)?;
        let (target, source, bytes) = (address(op, &out)?, address(op, x)?, inner * x.dtype().size());
        let (unit, suffix) = match bytes.is_multiple_of(UNIT) && is_aligned(target) && is_aligned(source) {
            true => (UNIT, "b16"),
            false => (x.dtype().size(), size_suffix(x.dtype())),
        };
        let (inner, n) = (bytes / unit, shape.volume() * x.dtype().size() / unit);
        let sizes = [outer, size, inner, places.len()].map(count);
        let [outer, size, inner, chosen] = sizes;
        let args = [target, source, address(op, indices)?, outer, size, inner, chosen];
        self.launch(&format!("index_select_{suffix}"), each(n), n, &args)?;
        Ok(out)
    }

    fn index_add(&self, x: &Tensor, dim: usize, indices: &Tensor, shape: &Shape) -> Result<Tensor> {
        let op = "index_add";
        let [outer, size, inner] = around(shape, dim);
        let indices = indices.to_vec::<i64>()?;
        check_indices(op, &indices, size)?;
        let out = Tensor::zeros(x.dtype(), shape, x.device())?;
        let places: Vec<usize> = (0..outer)
            .flat_map(|block| indices.iter().map(move |&index| block * size + index as usize))
            .collect();
        self.add_runs(op, None, x, &out, (&places, inner))?;
        Ok(out)
    }

    fn gather(&self, x: &Tensor, dim: usize, indices: &Tensor) -> Result<Tensor> {
        let (op, n) = ("gather", indices.shape().volume());
        let places = places(op, x.shape(), indices, dim)?;
        let places: Vec<u64> = places.into_iter().map(|place| place as u64).collect();
        let places = self.upload(DType::U64, &places)?;
        let out = self.empty(x.dtype(), indices.shape())?;
        let args = [address(op, &out)?, address(op, x)?, address(op, &places)?, count(n)];
        self.launch(&format!("take_{}", size_suffix(x.dtype())), each(n), n, &args)?;
        Ok(out)
    }

    fn scatter(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        let op = "scatter";
        let places = places(op, base.shape(), indices, dim)?;
        let runs = Runs::new(&places);
        let out = self.owned(op, base)?;
        let n = runs.places.len();
        if n == 0 {
            return Ok(out);
        }
        // Of several with one place, the last wins.
        let last: Vec<u64> = runs.starts[1..].iter().map(|&end| runs.order[end as usize - 1]).collect();
        let (targets, last) = (self.upload(DType::U64, &runs.places)?, self.upload(DType::U64, &last)?);
        let args =
            [address(op, &out)?, address(op, source)?, address(op, &targets)?, address(op, &last)?, count(n)];
        self.launch(&format!("put_{}", size_suffix(out.dtype())), each(n), n, &args)?;
        Ok(out)
    }

    fn scatter_add(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        let op = "scatter_add";
        let places = places(op, base.shape(), indices, dim)?;
        let out = self.owned(op, base)?;
        self.add_runs(op, Some(&out), source, &out, (&places, 1))?;
        Ok(out)
    }
}
