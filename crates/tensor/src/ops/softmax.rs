//! Softmax and its logarithm.

use super::computed;
use crate::backend::on;
use crate::error::TensorError;
use crate::kernels::rows::Softmax;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

struct SoftmaxFunction(Softmax);

impl Function for SoftmaxFunction {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let x = inputs[0].packed(self.name())?;
        computed(self.name(), x.dtype())?;
        let y = on(x.device()).softmax(self.0, &x, x.shape()[x.shape().ndim() - 1])?;
        context.save(&[&y]);
        Ok(vec![y])
    }

    fn backward(
        &self,
        context: Context,
        mut gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [y]) = (gradients[0].take(), context.saved()) else { return Ok(vec![None]) };
        let gradient = gradient.into_packed(self.name())?;
        let row = y.shape()[y.shape().ndim() - 1];
        Ok(vec![Some(on(y.device()).softmax_gradient(self.0, y, gradient, row)?)])
    }
}

impl Tensor {
    /// Softmax along a dim.
    pub fn softmax(&self, dim: usize) -> Result<Self, TensorError> {
        self.softened(dim, Softmax::Plain)
    }

    /// The logarithm of softmax along a dim.
    pub fn log_softmax(&self, dim: usize) -> Result<Self, TensorError> {
        self.softened(dim, Softmax::Log)
    }

    fn softened(&self, dim: usize, op: Softmax) -> Result<Self, TensorError> {
        self.check_dim(op.name(), dim)?;
        self.along_last(dim, |x| apply_one(SoftmaxFunction(op), std::slice::from_ref(x)))
    }

    /// Does something along the last dim to another dim.
    pub(super) fn along_last(
        &self,
        dim: usize,
        work: impl FnOnce(&Self) -> Result<Self, TensorError>,
    ) -> Result<Self, TensorError> {
        let last = self.shape().ndim() - 1;
        if dim == last {
            return work(self);
        }
        work(&self.transpose(dim, last)?)?.transpose(dim, last)
    }
}
