//! Log-probabilities of tokens, as a differentiable function of logits.

use weightloom_layout::{DType, Shape};
use weightloom_nn::IGNORED;
use weightloom_tensor::{Context, Device, Element, Function, Result, Tensor, TensorError, apply};

/// The log-probabilities of targets `[rows]` under logits `[rows, classes]`, 0 where
/// a target is [`IGNORED`]. Only the logits are kept for the backward pass.
pub(super) fn token_logprobs(logits: &Tensor, targets: &[i64]) -> Result<Tensor> {
    let function = TokenLogprobs { targets: targets.to_vec() };
    let found = apply(function, std::slice::from_ref(logits))?;
    found.into_iter().next().ok_or(TensorError::GradientCount { function: NAME, inputs: 1, found: 0 })
}

/// A constant on a device. Meta tensors have no values.
pub(super) fn constant<T: Element>(values: &[T], dims: &[usize], device: Device) -> Result<Tensor> {
    match device {
        Device::Meta => Tensor::zeros(T::DTYPE, dims, device),
        _ => Tensor::from_slice(values, dims)?.to(device),
    }
}

const NAME: &str = "token_logprobs";

struct TokenLogprobs {
    targets: Vec<i64>,
}

impl TokenLogprobs {
    /// For each row its class, and 1 where the row is not ignored.
    fn classes(&self, logits: &Tensor) -> Result<[Tensor; 2]> {
        let (rows, classes) = (self.targets.len(), logits.shape()[1]);
        let (mut index, mut counts) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        for (position, &target) in self.targets.iter().enumerate() {
            let counted = target != IGNORED;
            if counted && usize::try_from(target).map_or(true, |class| class >= classes) {
                return Err(TensorError::Index { op: NAME, index: target, position, rows: classes });
            }
            index.push(if counted { target } else { 0 });
            counts.push(f32::from(u8::from(counted)));
        }
        let device = logits.device();
        Ok([constant(&index, &[rows, 1], device)?, constant(&counts, &[rows, 1], device)?])
    }
}

/// The values where a mask is not 0, and 0 elsewhere.
fn where_counted(values: &Tensor, counts: &Tensor) -> Result<Tensor> {
    let zero = Tensor::zeros(values.dtype(), &[], values.device())?;
    counts.cast(DType::Bool)?.select(values, &zero)
}

impl Function for TokenLogprobs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let logits = &inputs[0];
        let rows = self.targets.len();
        if logits.shape().ndim() != 2 || logits.shape()[0] != rows {
            let shapes = vec![logits.shape().clone(), Shape::new(&[rows])?];
            return Err(TensorError::Shapes { op: NAME, shapes });
        }
        let [index, counts] = self.classes(logits)?;
        let column = Shape::new(&[rows, 1])?;
        let log_sum = logits.logsumexp(&[1])?.reshape(&column)?;
        let found = where_counted(&logits.gather(1, &index)?.sub(&log_sum)?, &counts)?;
        context.save(&[logits, &log_sum, &index, &counts]);
        Ok(vec![found.reshape(&Shape::new(&[rows])?)?])
    }

    /// `(target - softmax) · gradient`.
    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(gradient), [logits, log_sum, index, counts]) = (&gradients[0], context.saved()) else {
            return Ok(vec![None]);
        };
        let column = gradient.cast(logits.dtype())?.reshape(log_sum.shape())?;
        let column = where_counted(&column, counts)?;
        let of_all = logits.sub(log_sum)?.exp()?.mul(&column.neg()?)?;
        Ok(vec![Some(of_all.scatter_add(1, index, &column)?)])
    }
}
