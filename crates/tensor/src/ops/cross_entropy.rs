//! Cross-entropy, alone and fused with the projection that makes the logits.

use weightloom_layout::{DType, Shape};

use super::{check_float, check_same_device, common, indices, shape_mismatch};
use crate::backend::on;
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::kernels::cross_entropy::wide_dtype;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// Options of a cross-entropy loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    /// Ignores rows with this target.
    pub ignore_index: Option<i64>,
    /// The probability mass that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// Divides the sum of losses; defaults to the number of rows that are not
    /// ignored. Losses of micro-batches, divided by the count of the whole batch,
    /// add up to its loss.
    pub divisor: Option<f64>,
}

impl CrossEntropy {
    fn check(&self, logits: &Tensor, targets: &Tensor) -> Result<()> {
        indices("cross_entropy", targets)?;
        let smoothing = self.label_smoothing;
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(TensorError::Probability { op: "cross_entropy", probability: smoothing.to_string() });
        }
        let (rows, targets_shape) = (logits.shape(), targets.shape());
        if rows.ndim() == 2 && targets_shape.ndim() == 1 && targets_shape[0] == rows[0] {
            return Ok(());
        }
        Err(shape_mismatch("cross_entropy", &[logits, targets]))
    }
}

struct CrossEntropyFunction {
    options: CrossEntropy,
}

impl Function for CrossEntropyFunction {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (logits, targets) =
            (inputs[0].contiguous("cross_entropy")?, inputs[1].contiguous("cross_entropy")?);
        check_float("cross_entropy", logits.dtype())?;
        let device = check_same_device("cross_entropy", &[&logits, &targets])?;
        self.options.check(&logits, &targets)?;
        context.save(&[&logits, &targets]);
        Ok(vec![on(device).cross_entropy(&logits, &targets, self.options)?])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let mut saved = context.into_saved();
        let (Some(gradient), Some(targets), Some(logits)) = (&gradients[0], saved.pop(), saved.pop()) else {
            return Ok(vec![None, None]);
        };
        let gradient = gradient.contiguous("cross_entropy")?;
        let backend = on(logits.device());
        // The memory of the logits is reused unless it is shared.
        Ok(vec![Some(backend.cross_entropy_gradient(logits, &targets, &gradient, self.options)?), None])
    }
}

struct ProjectedCrossEntropy {
    options: CrossEntropy,
}

impl ProjectedCrossEntropy {
    /// The number of targets that are not ignored.
    fn counted(&self, targets: &Tensor) -> Result<usize> {
        if targets.device() == Device::Meta {
            return Ok(targets.shape().volume());
        }
        let targets = targets.to_vec::<i64>()?;
        Ok(targets.iter().filter(|&&target| Some(target) != self.options.ignore_index).count())
    }
}

impl Function for ProjectedCrossEntropy {
    fn name(&self) -> &'static str {
        "projected_cross_entropy"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [hidden, weight, targets] = inputs else {
            return Err(shape_mismatch(self.name(), &inputs.iter().collect::<Vec<_>>()));
        };
        let (device, dtype) = common(self.name(), &[hidden, weight])?;
        check_same_device(self.name(), &[hidden, targets])?;
        check_float(self.name(), dtype)?;
        let (&[rows, width], &[classes, depth]) = (&hidden.shape()[..], &weight.shape()[..]) else {
            return Err(shape_mismatch(self.name(), &[hidden, weight, targets]));
        };
        if width != depth {
            return Err(shape_mismatch(self.name(), &[hidden, weight, targets]));
        }
        self.options.check(&Tensor::without_memory(Shape::new(&[rows, classes])?, dtype), targets)?;
        let total = self.counted(targets)?;
        // Without a gradient of the weight there is memory for twice as many.
        let chunk = on(device).logits_at_once();
        let most = if context.needs(1) { chunk } else { 2 * chunk } / classes.max(1);
        let parts = rows.div_ceil(most.max(1)).max(1);
        let at_once = rows.div_ceil(parts).max(1);
        let divisor = self.options.divisor.unwrap_or(total as f64);
        let empty = if divisor == 0.0 { f64::NAN } else { 0.0 };
        // Half types are too narrow for a loss and for sums over many rows.
        let wide = wide_dtype(dtype);
        let mut loss = Tensor::full(empty, wide, &[], device)?;
        let options = CrossEntropy { divisor: None, ..self.options };
        let mut of_hidden = Vec::new();
        let mut of_weight: Option<Tensor> = None;
        for start in (0..rows).step_by(at_once) {
            let count = at_once.min(rows - start);
            let part = hidden.narrow(0, start, count)?;
            let targets = targets.narrow(0, start, count)?.contiguous(self.name())?;
            let counted = self.counted(&targets)?;
            let share = counted as f64 / divisor;
            if counted == 0 {
                of_hidden.push(Tensor::full(0.0, dtype, &[count, width], device)?);
                continue;
            }
            let logits = part.linear(weight, None, None)?;
            if !context.needs(0) && !context.needs(1) {
                let part_loss = on(device).cross_entropy(&logits.cast(wide)?, &targets, options)?;
                loss.add_assign(&part_loss.scale(share)?)?;
                continue;
            }
            let [part_loss, of_logits] = on(device).loss_and_gradient(logits, &targets, options, share)?;
            loss.add_assign(&part_loss)?;
            if context.needs(0) {
                of_hidden.push(of_logits.matmul(weight)?);
            }
            if context.needs(1) {
                let of_logits = of_logits.transpose(0, 1)?;
                of_weight = Some(match of_weight {
                    // A single chunk needs no wider sum.
                    None if at_once == rows => of_logits.matmul(&part)?,
                    sum => on(device).add_product(sum, &of_logits, &part)?,
                });
            }
        }
        let of_hidden = if context.needs(0) && rows > 0 {
            Tensor::cat(&of_hidden.iter().collect::<Vec<_>>(), 0)?
        } else {
            Tensor::full(0.0, dtype, hidden.shape(), device)?
        };
        let of_weight = match of_weight {
            Some(of_weight) => of_weight.cast(dtype)?,
            None if context.needs(1) => Tensor::full(0.0, dtype, weight.shape(), device)?,
            None => weight.shape_only(),
        };
        context.save(&[&of_hidden, &of_weight]);
        Ok(vec![loss])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let needs = [context.needs(0), context.needs(1)];
        let Some(g) = &gradients[0] else { return Ok(vec![None, None, None]) };
        // The gradient is mostly one, and large tensors need no scaling. Meta tensors
        // count this case.
        let one = g.device() == Device::Meta || g.cast(DType::F64)?.item::<f64>()? == 1.0;
        let mut scaled = context.into_saved().into_iter().zip(needs).map(|(tensor, needed)| {
            needed.then(|| if one { Ok(tensor) } else { tensor.mul(&g.cast(tensor.dtype())?) }).transpose()
        });
        let (of_hidden, of_weight) =
            (scaled.next().transpose()?.flatten(), scaled.next().transpose()?.flatten());
        drop(scaled);
        Ok(vec![of_hidden, of_weight, None])
    }
}

impl Tensor {
    /// The mean cross-entropy of rows of logits with `i64` targets. The gradient
    /// reuses the memory of the logits unless that is shared.
    pub fn cross_entropy(&self, targets: &Self, options: CrossEntropy) -> Result<Self> {
        apply_one(CrossEntropyFunction { options }, &[self.clone(), targets.clone()])
    }

    /// The mean cross-entropy of `self @ weightᵀ` with `i64` targets, a chunk of
    /// rows at a time, so that the logits never exist at once. The weight is
    /// `[classes, width]`. The forward pass computes the gradients too, so that it
    /// takes about as long as forward and backward together.
    pub fn projected_cross_entropy(
        &self,
        weight: &Self,
        targets: &Self,
        options: CrossEntropy,
    ) -> Result<Self> {
        let inputs = [self.clone(), weight.clone(), targets.clone()];
        apply_one(ProjectedCrossEntropy { options }, &inputs)
    }
}
