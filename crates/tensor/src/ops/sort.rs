//! Cumulative sum, sort, top-k and argmax.

use weightloom_layout::{DType, Dims, Shape};

use super::check_float;
use crate::backend::on;
use crate::error::{Result, TensorError};
use crate::kernels::sort::{Direction, Order};
use crate::tape::{Context, Function, apply_one, record};
use crate::tensor::Tensor;

/// Along the last dim.
struct Cumsum;

impl Cumsum {
    fn run(x: &Tensor, direction: Direction) -> Result<Tensor> {
        let x = x.contiguous("cumsum")?;
        on(x.device()).cumsum(&x, x.shape()[x.shape().ndim() - 1], direction)
    }
}

impl Function for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        check_float("cumsum", inputs[0].dtype())?;
        Ok(vec![Self::run(&inputs[0], Direction::Forward)?])
    }

    fn backward(&self, _: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![gradients[0].as_ref().map(|g| Self::run(g, Direction::Reverse)).transpose()?])
    }
}

/// The first `count` of the sorted last dim, and where they came from.
struct Sorted {
    order: Order,
    count: usize,
}

impl Function for Sorted {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = inputs[0].contiguous("sort")?;
        let last = x.shape().ndim() - 1;
        let [sorted, places] = on(x.device()).sort(&x, x.shape()[last], self.order)?;
        let (sorted, places) = (sorted.narrow(last, 0, self.count)?, places.narrow(last, 0, self.count)?);
        context.save(&[&places, &x.shape_only()]);
        Ok(vec![sorted.contiguous("sort")?, places.contiguous("sort")?])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(g), [places, x]) = (&gradients[0], context.saved()) else { return Ok(vec![None]) };
        let zeros = Tensor::full(0.0, g.dtype(), x.shape(), g.device())?;
        let (g, places) = (g.contiguous("sort")?, places.contiguous("sort")?);
        Ok(vec![Some(on(g.device()).scatter(zeros, x.shape().ndim() - 1, &places, &g)?)])
    }
}

impl Tensor {
    /// The cumulative sum along a dim. Half types are summed in `f32`.
    pub fn cumsum(&self, dim: usize) -> Result<Self> {
        self.check_dim("cumsum", dim)?;
        self.along_last(dim, |x| apply_one(Cumsum, std::slice::from_ref(x)))
    }

    /// Sorted elements along a dim, and their `i64` indices. The sort is stable; NaN
    /// counts as the largest.
    pub fn sort(&self, dim: usize, order: Order) -> Result<(Self, Self)> {
        self.check_dim("sort", dim)?;
        self.first_sorted(dim, order, self.shape()[dim])
    }

    /// The `count` largest elements along a dim in descending order, and their `i64`
    /// indices. Equal elements keep their order.
    pub fn topk(&self, count: usize, dim: usize) -> Result<(Self, Self)> {
        self.check_dim("topk", dim)?;
        if count > self.shape()[dim] {
            let shape = self.shape().clone();
            return Err(TensorError::Range { op: "topk", dim, start: 0, end: count, shape });
        }
        self.first_sorted(dim, Order::Descending, count)
    }

    fn first_sorted(&self, dim: usize, order: Order, count: usize) -> Result<(Self, Self)> {
        let last = self.shape().ndim() - 1;
        let rows = if dim == last { self.clone() } else { self.transpose(dim, last)? };
        let mut outputs = record(Sorted { order, count }, &[rows])?;
        let (Some(places), Some(sorted)) = (outputs.pop(), outputs.pop()) else {
            return Err(TensorError::GradientCount { function: "sort", inputs: 2, found: outputs.len() });
        };
        // Indices have no gradient.
        let places = places.detach();
        if dim == last {
            return Ok((sorted, places));
        }
        Ok((sorted.transpose(dim, last)?, places.transpose(dim, last)?))
    }

    /// The `i64` index of the largest element along a dim, which is removed; the
    /// first of several.
    pub fn argmax(&self, dim: usize) -> Result<Self> {
        self.check_dim("argmax", dim)?;
        if self.shape()[dim] == 0 {
            return Err(TensorError::Empty { op: "argmax", shape: self.shape().clone() });
        }
        let (_, places) = self.detach().topk(1, dim)?;
        let mut dims = Dims::from_slice(self.shape());
        dims.remove(dim);
        debug_assert_eq!(places.dtype(), DType::I64);
        places.reshape(&Shape::new(&dims)?)
    }
}
