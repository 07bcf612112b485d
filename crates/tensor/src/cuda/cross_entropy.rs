//! Cross-entropy of rows of logits.

use weightloom_cuda::Arg;
use weightloom_layout::Shape;

use super::{Cuda, address, count, float, rows, wide};
use crate::error::Result;
use crate::kernels::cross_entropy::{CrossEntropyKernels, LOGITS_ON_GPU, count_targets};
use crate::ops::CrossEntropy;
use crate::tensor::Tensor;

const OP: &str = "cross_entropy";

/// The divisor of the sum of losses. Checks all targets.
fn divisor(targets: &Tensor, classes: usize, options: CrossEntropy) -> Result<f64> {
    let counted = count_targets(&targets.to_vec::<i64>()?, classes, options)?;
    Ok(options.divisor.unwrap_or(counted as f64))
}

/// The ignored target, and whether there is one.
fn ignored(options: CrossEntropy) -> [Arg<'static>; 2] {
    [Arg::I64(options.ignore_index.unwrap_or(0)), Arg::I32(i32::from(options.ignore_index.is_some()))]
}

impl CrossEntropyKernels for Cuda {
    fn cross_entropy(&self, logits: &Tensor, targets: &Tensor, options: CrossEntropy) -> Result<Tensor> {
        let (dtype, number, row) = (logits.dtype(), logits.shape()[0], logits.shape()[1]);
        let kernel = format!("row_loss_{}", float(OP, dtype)?);
        let divisor = divisor(targets, row, options)?;
        let losses = self.empty(wide(dtype), &Shape::new(&[number])?)?;
        let [ignored, ignores] = ignored(options);
        let args = [
            address(OP, &losses)?,
            address(OP, logits)?,
            address(OP, targets)?,
            count(number),
            count(row),
            ignored,
            ignores,
            Arg::F64(options.label_smoothing),
        ];
        self.launch(&kernel, rows(number), number * row, &args)?;
        self.add_in_order(OP, &losses, divisor, dtype, &Shape::default())
    }

    fn loss_and_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        options: CrossEntropy,
        share: f64,
    ) -> Result<[Tensor; 2]> {
        let (dtype, number, row) = (logits.dtype(), logits.shape()[0], logits.shape()[1]);
        let kernel = format!("loss_and_gradient_{}", float(OP, dtype)?);
        let divisor = divisor(targets, row, options)?;
        let losses = self.empty(wide(dtype), &Shape::new(&[number])?)?;
        let logits = self.owned(OP, logits)?;
        let [ignored, ignores] = ignored(options);
        let args = [
            address(OP, &logits)?,
            address(OP, &losses)?,
            address(OP, targets)?,
            count(number),
            count(row),
            ignored,
            ignores,
            Arg::F64(options.label_smoothing),
            Arg::F64(share / divisor),
        ];
        self.launch(&kernel, rows(number), number * row, &args)?;
        let loss = self.add_in_order(OP, &losses, divisor / share, wide(dtype), &Shape::default())?;
        Ok([loss, logits])
    }

    fn logits_at_once(&self) -> usize {
        LOGITS_ON_GPU
    }

    fn cross_entropy_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        gradient: &Tensor,
        options: CrossEntropy,
    ) -> Result<Tensor> {
        let (dtype, number, row) = (logits.dtype(), logits.shape()[0], logits.shape()[1]);
        let kernel = format!("cross_entropy_gradient_{}", float(OP, dtype)?);
        let divisor = divisor(targets, row, options)?;
        let reused = self.reuse(OP, logits)?;
        let [ignored, ignores] = ignored(options);
        let args = [
            address(OP, &reused.out)?,
            reused.source,
            address(OP, targets)?,
            address(OP, gradient)?,
            count(number),
            count(row),
            ignored,
            ignores,
            Arg::F64(options.label_smoothing),
            Arg::F64(divisor),
        ];
        self.launch(&kernel, rows(number), number * row, &args)?;
        Ok(reused.out)
    }
}
