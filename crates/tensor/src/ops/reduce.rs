//! Reductions.

use weightloom_layout::{Dims, Shape};

use super::check_float;
use crate::backend::on;
use crate::error::{Result, TensorError};
use crate::kernels::reduce::Reduction;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

struct Reduce {
    op: Reduction,
    /// Ascending, each once.
    dims: Dims,
    shape: Shape,
}

impl Reduce {
    fn kept(&self) -> impl Iterator<Item = usize> {
        (0..self.shape.ndim()).filter(|dim| !self.dims.contains(dim))
    }

    /// The order of dims with the reduced ones last.
    fn order(&self) -> Dims {
        self.kept().chain(self.dims.iter().copied()).collect()
    }

    fn row(&self) -> usize {
        self.dims.iter().map(|&dim| self.shape[dim]).product()
    }

    /// A result, or its gradient, expanded along the reduced dims.
    fn repeated(&self, x: &Tensor) -> Result<Tensor> {
        let mut dims = Dims::from_slice(&self.shape);
        self.dims.iter().for_each(|&dim| dims[dim] = 1);
        x.reshape(&Shape::new(&dims)?)?.expand(&self.shape)
    }

    fn gradient(&self, g: &Tensor, saved: &[Tensor]) -> Result<Tensor> {
        let wide_g = self.repeated(g)?;
        let [x, y] = saved else { return Ok(wide_g) };
        let wide_y = || self.repeated(y);
        match self.op {
            Reduction::Sum => Ok(wide_g),
            // Equal extrema share the gradient.
            Reduction::Max | Reduction::Min => {
                let first = x.eq(&wide_y()?)?.cast(g.dtype())?;
                let count = self.repeated(&first.sum(&self.dims)?)?;
                first.mul(&wide_g)?.div(&count)
            }
            // At zero the derivative is zero.
            Reduction::Norm => {
                let zero = Tensor::full(0.0, g.dtype(), &[], g.device())?;
                let slope = x.mul(&wide_g)?.div(&wide_y()?)?;
                wide_y()?.eq(&zero)?.select(&zero, &slope)
            }
            Reduction::LogSumExp => {
                let weights = x.sub(&wide_y()?)?.exp()?;
                // The gradient of a row of -∞ is zero.
                let lost = Tensor::full(f64::NEG_INFINITY, g.dtype(), &[], g.device())?;
                let zero = Tensor::full(0.0, g.dtype(), &[], g.device())?;
                wide_y()?.eq(&lost)?.select(&zero, &weights.mul(&wide_g)?)
            }
            Reduction::Product => {
                let order = self.order();
                let rows = x.permute(&order)?.contiguous("prod")?;
                let of_rows = on(x.device()).product_gradient(&rows, &g.contiguous("prod")?, self.row())?;
                let mut back = Dims::from_elem(0, order.len());
                order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
                of_rows.permute(&back)
            }
        }
    }
}

impl Function for Reduce {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = &inputs[0];
        check_float(self.name(), x.dtype())?;
        let kept: Dims = self.kept().map(|dim| self.shape[dim]).collect();
        // The reduced dims become contiguous rows.
        let rows = x.with_view(x.view().permute(&self.order())).contiguous(self.name())?;
        let y = on(x.device()).reduce(self.op, &rows, self.row(), &Shape::new(&kept)?)?;
        if self.op != Reduction::Sum {
            context.save(&[x, &y]);
        }
        Ok(vec![y])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![gradients[0].as_ref().map(|g| self.gradient(g, context.saved())).transpose()?])
    }

    fn is_linear(&self, _: &Context) -> bool {
        self.op == Reduction::Sum
    }
}

impl Tensor {
    fn reduced(&self, op: Reduction, dims: &[usize]) -> Result<Self> {
        let mut sorted = Dims::from_slice(dims);
        sorted.sort_unstable();
        sorted.dedup();
        sorted.iter().try_for_each(|&dim| self.check_dim(op.name(), dim))?;
        let lacking =
            matches!(op, Reduction::Max | Reduction::Min) && sorted.iter().any(|&dim| self.shape()[dim] == 0);
        if lacking {
            return Err(TensorError::Empty { op: op.name(), shape: self.shape().clone() });
        }
        apply_one(Reduce { op, dims: sorted, shape: self.shape().clone() }, std::slice::from_ref(self))
    }

    /// The sum over some dims, which are removed. Half types are summed in `f32`.
    pub fn sum(&self, dims: &[usize]) -> Result<Self> {
        self.reduced(Reduction::Sum, dims)
    }

    /// The sum of all elements.
    pub fn sum_all(&self) -> Result<Self> {
        self.sum(&(0..self.shape().ndim()).collect::<Vec<_>>())
    }

    /// The mean over some dims, which are removed.
    pub fn mean(&self, dims: &[usize]) -> Result<Self> {
        let sum = self.sum(dims)?;
        let count = self.shape().volume() as f64 / sum.shape().volume().max(1) as f64;
        sum.scale(1.0 / count)
    }

    /// The largest element along some dims, which are removed. Equal ones
    /// share the gradient; a NaN is the largest.
    pub fn max(&self, dims: &[usize]) -> Result<Self> {
        self.reduced(Reduction::Max, dims)
    }

    /// The smallest element along some dims, which are removed. Equal ones
    /// share the gradient; a NaN is the smallest.
    pub fn min(&self, dims: &[usize]) -> Result<Self> {
        self.reduced(Reduction::Min, dims)
    }

    /// The product over some dims, which are removed.
    pub fn prod(&self, dims: &[usize]) -> Result<Self> {
        self.reduced(Reduction::Product, dims)
    }

    /// The Euclidean norm over some dims, which are removed. Its derivative
    /// at zero is zero.
    pub fn norm(&self, dims: &[usize]) -> Result<Self> {
        self.reduced(Reduction::Norm, dims)
    }

    /// The logarithm of the sum of exponentials over some dims, which are removed.
    pub fn logsumexp(&self, dims: &[usize]) -> Result<Self> {
        self.reduced(Reduction::LogSumExp, dims)
    }
}
