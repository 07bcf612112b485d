//! Functions on meta tensors, which have shapes and no data.

use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Context, Device, Function, Tensor, TensorError, apply};

/// How the shapes and dtypes of a function's results are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meta {
    /// By `forward` on meta tensors: it never reads elements. A dry run then counts
    /// its costs, and runs `backward` and the replacement of its rule on meta tensors
    /// too.
    Forward,
    /// These are the global shapes and dtypes. Nothing of the function runs on meta
    /// tensors.
    Outputs(Vec<(Shape, DType)>),
}

/// Stands for a function that does not run on meta tensors. Its gradients have the
/// shapes of the inputs.
struct WithoutData {
    function: &'static str,
    inputs: Vec<(Shape, DType)>,
    outputs: Vec<(Shape, DType)>,
}

impl Function for WithoutData {
    fn name(&self) -> &'static str {
        self.function
    }

    fn forward(&self, context: &mut Context, _: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let whole_numbers = |output: &usize| !self.outputs[*output].1.is_float();
        context.mark_non_differentiable(&(0..self.outputs.len()).filter(whole_numbers).collect::<Vec<_>>());
        self.outputs.iter().map(|(shape, dtype)| Tensor::zeros(*dtype, shape, Device::Meta)).collect()
    }

    fn backward(&self, context: Context, _: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>, TensorError> {
        let gradients = self.inputs.iter().enumerate().map(|(input, (shape, dtype))| {
            context.needs(input).then(|| Tensor::zeros(*dtype, shape, Device::Meta)).transpose()
        });
        gradients.collect()
    }
}

/// The results of a function on meta tensors, without running it.
pub(crate) fn meta_results(
    function: &'static str,
    inputs: &[Tensor],
    outputs: Vec<(Shape, DType)>,
) -> Result<Vec<Tensor>, TensorError> {
    let kinds = inputs.iter().map(|input| (input.shape().clone(), input.dtype())).collect();
    apply(WithoutData { function, inputs: kinds, outputs }, inputs)
}
