//! Sums and means.

use shardloom_layout::{Dims, Shape};

use crate::device::Device;
use crate::element::with_float;
use crate::error::TensorError;
use crate::kernels::reduce::row_sums;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

struct Sum {
    /// Ascending, each once.
    dims: Dims,
    shape: Shape,
}

impl Sum {
    fn kept(&self) -> impl Iterator<Item = usize> {
        (0..self.shape.ndim()).filter(|dim| !self.dims.contains(dim))
    }
}

impl Function for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let x = &inputs[0];
        let kept: Dims = self.kept().map(|dim| self.shape[dim]).collect();
        let shape = Shape::new(&kept)?;
        if x.device() == Device::Meta {
            return Ok(vec![Tensor::meta(shape, x.dtype())]);
        }
        // The dims to be summed become rows.
        let order: Dims = self.kept().chain(self.dims.iter().copied()).collect();
        let rows = x.seen_as(x.view().permute(&order)).packed("sum")?;
        let row = self.dims.iter().map(|&dim| self.shape[dim]).product();
        Ok(vec![with_float!("sum", x.dtype(), T => row_sums::<T>(&rows, row, &shape))?])
    }

    fn backward(
        &self,
        _: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let mut dims = Dims::from_slice(&self.shape);
        self.dims.iter().for_each(|&dim| dims[dim] = 1);
        Ok(vec![Some(gradient.reshape(&Shape::new(&dims)?)?.expand(&self.shape)?)])
    }
}

impl Tensor {
    /// The sum over some dims, which are then gone. Half types add up in `f32`.
    pub fn sum(&self, dims: &[usize]) -> Result<Self, TensorError> {
        let mut sorted = Dims::from_slice(dims);
        sorted.sort_unstable();
        sorted.dedup();
        sorted.iter().try_for_each(|&dim| self.check_dim("sum", dim))?;
        apply_one(Sum { dims: sorted, shape: self.shape().clone() }, std::slice::from_ref(self))
    }

    /// The sum of all elements.
    pub fn sum_all(&self) -> Result<Self, TensorError> {
        self.sum(&(0..self.shape().ndim()).collect::<Vec<_>>())
    }

    /// The mean over some dims, which are then gone.
    pub fn mean(&self, dims: &[usize]) -> Result<Self, TensorError> {
        let sum = self.sum(dims)?;
        let count = self.shape().volume() as f64 / sum.shape().volume().max(1) as f64;
        sum.scale(1.0 / count)
    }
}
