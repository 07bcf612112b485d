//! Operations on whole rows: softmax, embedding, cross-entropy.

use shardloom_layout::{DType, Dims, Shape};

use super::mismatch;
use crate::device::Device;
use crate::element::with_float;
use crate::error::TensorError;
use crate::kernels::rows;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// Softmax or its logarithm along the last dim.
#[derive(Clone, Copy)]
enum Softmax {
    Plain,
    Log,
}

impl Function for Softmax {
    fn name(&self) -> &'static str {
        match self {
            Self::Plain => "softmax",
            Self::Log => "log_softmax",
        }
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let x = inputs[0].packed(self.name())?;
        if x.device() == Device::Meta {
            return Ok(vec![Tensor::meta(x.shape().clone(), x.dtype())]);
        }
        let row = x.shape()[x.shape().ndim() - 1];
        let y = with_float!(self.name(), x.dtype(), T => match self {
            Self::Plain => rows::softmax::<T>(&x, row),
            Self::Log => rows::log_softmax::<T>(&x, row),
        })?;
        context.save(&[&y]);
        Ok(vec![y])
    }

    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [y]) = (&gradients[0], context.saved()) else { return Ok(vec![None]) };
        let gradient = gradient.packed(self.name())?;
        let row = y.shape()[y.shape().ndim() - 1];
        let of_x = with_float!(self.name(), y.dtype(), T => match self {
            Self::Plain => rows::softmax_gradient::<T>(y, &gradient, row),
            Self::Log => rows::log_softmax_gradient::<T>(y, &gradient, row),
        })?;
        Ok(vec![Some(of_x)])
    }
}

struct Embedding {
    indices: Vec<i64>,
    shape: Shape,
    table: Shape,
}

impl Function for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let table = inputs[0].packed("embedding")?;
        if table.device() == Device::Meta {
            return Ok(vec![Tensor::meta(self.shape.clone(), table.dtype())]);
        }
        let rows = with_float!("embedding", table.dtype(), T => {
            rows::embedding::<T>(&table, &self.indices, &self.shape)
        })?;
        Ok(vec![rows])
    }

    fn backward(
        &self,
        _: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let gradient = gradient.packed("embedding")?;
        let of_table = with_float!("embedding", gradient.dtype(), T => {
            rows::embedding_gradient::<T>(&gradient, &self.indices, &self.table)
        })?;
        Ok(vec![Some(of_table)])
    }
}

/// How targets count in a cross-entropy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossEntropy {
    /// Rows with this target do not count.
    pub ignore_index: Option<i64>,
}

struct CrossEntropyFunction {
    /// The class of each row that counts.
    targets: Vec<Option<usize>>,
}

impl Function for CrossEntropyFunction {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let logits = inputs[0].packed("cross_entropy")?;
        if logits.device() == Device::Meta {
            return Ok(vec![Tensor::meta(Shape::default(), logits.dtype())]);
        }
        context.save(&[&logits]);
        let loss = with_float!("cross_entropy", logits.dtype(), T => rows::cross_entropy::<T>(&logits, &self.targets))?;
        Ok(vec![loss])
    }

    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [logits]) = (&gradients[0], context.saved()) else { return Ok(vec![None]) };
        let of_logits = with_float!("cross_entropy", logits.dtype(), T => {
            rows::cross_entropy_gradient::<T>(logits, &self.targets, gradient)
        })?;
        Ok(vec![Some(of_logits)])
    }
}

impl Tensor {
    /// Softmax along a dim.
    pub fn softmax(&self, dim: usize) -> Result<Self, TensorError> {
        self.along_last(dim, Softmax::Plain)
    }

    /// The logarithm of softmax along a dim.
    pub fn log_softmax(&self, dim: usize) -> Result<Self, TensorError> {
        self.along_last(dim, Softmax::Log)
    }

    fn along_last(&self, dim: usize, function: Softmax) -> Result<Self, TensorError> {
        self.check_dim(function.name(), dim)?;
        let last = self.shape().ndim() - 1;
        if dim == last {
            return apply_one(function, std::slice::from_ref(self));
        }
        apply_one(function, &[self.transpose(dim, last)?])?.transpose(dim, last)
    }

    /// Rows of this table, chosen by a tensor of `i64` indices.
    pub fn embedding(&self, indices: &Self) -> Result<Self, TensorError> {
        if self.shape().ndim() != 2 {
            return Err(mismatch("embedding", &[self, indices]));
        }
        let dims: Dims = indices.shape().iter().copied().chain([self.shape()[1]]).collect();
        let shape = Shape::new(&dims)?;
        let indices = if self.device() == Device::Meta { Vec::new() } else { whole("embedding", indices)? };
        apply_one(Embedding { indices, shape, table: self.shape().clone() }, std::slice::from_ref(self))
    }

    /// The mean cross-entropy of rows of logits with `i64` targets.
    pub fn cross_entropy(&self, targets: &Self, options: CrossEntropy) -> Result<Self, TensorError> {
        let fits =
            self.shape().ndim() == 2 && targets.shape().ndim() == 1 && targets.shape()[0] == self.shape()[0];
        if !fits {
            return Err(mismatch("cross_entropy", &[self, targets]));
        }
        let indices =
            if self.device() == Device::Meta { Vec::new() } else { whole("cross_entropy", targets)? };
        let counts = |index: &i64| Some(*index) != options.ignore_index;
        let counted: Vec<i64> = indices.iter().copied().filter(counts).collect();
        rows::check_indices("cross_entropy", &counted, self.shape()[1])?;
        let targets = indices.iter().map(|index| counts(index).then_some(*index as usize)).collect();
        apply_one(CrossEntropyFunction { targets }, std::slice::from_ref(self))
    }
}

fn whole(op: &'static str, indices: &Tensor) -> Result<Vec<i64>, TensorError> {
    if indices.dtype() != DType::I64 {
        return Err(TensorError::DType { op, dtype: indices.dtype() });
    }
    indices.to_vec()
}
