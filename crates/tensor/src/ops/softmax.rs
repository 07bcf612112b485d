//! Softmax and log-softmax.

use super::check_float;
use crate::backend::on;
use crate::error::Result;
use crate::kernels::softmax::Softmax;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

struct SoftmaxFunction(Softmax);

impl Function for SoftmaxFunction {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = inputs[0].contiguous(self.name())?;
        check_float(self.name(), x.dtype())?;
        let y = on(x.device()).softmax(self.0, &x, x.shape()[x.shape().ndim() - 1])?;
        context.save(&[&y]);
        Ok(vec![y])
    }

    fn backward(&self, context: Context, mut gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(gradient), [y]) = (gradients[0].take(), context.saved()) else { return Ok(vec![None]) };
        let gradient = gradient.into_contiguous(self.name())?;
        let row = y.shape()[y.shape().ndim() - 1];
        Ok(vec![Some(on(y.device()).softmax_gradient(self.0, y, gradient, row)?)])
    }
}

impl Tensor {
    /// Softmax along a dim.
    pub fn softmax(&self, dim: usize) -> Result<Self> {
        self.apply_softmax(dim, Softmax::Plain)
    }

    /// Log-softmax along a dim.
    pub fn log_softmax(&self, dim: usize) -> Result<Self> {
        self.apply_softmax(dim, Softmax::Log)
    }

    fn apply_softmax(&self, dim: usize, op: Softmax) -> Result<Self> {
        self.check_dim(op.name(), dim)?;
        self.along_last(dim, |x| apply_one(SoftmaxFunction(op), std::slice::from_ref(x)))
    }

    /// Applies a function of the last dim to another dim.
    pub(super) fn along_last(&self, dim: usize, work: impl FnOnce(&Self) -> Result<Self>) -> Result<Self> {
        let last = self.shape().ndim() - 1;
        if dim == last {
            return work(self);
        }
        work(&self.transpose(dim, last)?)?.transpose(dim, last)
    }
}
