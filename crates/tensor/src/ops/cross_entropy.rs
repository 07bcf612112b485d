//! Cross-entropy, alone and fused with the projection that makes the logits.

use weightloom_layout::{DType, Shape};

use super::{common, computed, indices, mismatch, one_device};
use crate::backend::on;
use crate::device::Device;
use crate::error::TensorError;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// How targets count in a cross-entropy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    /// Rows with this target do not count.
    pub ignore_index: Option<i64>,
    /// The share of the target that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// What the sum of losses is divided by, instead of the number of rows that
    /// count. Losses of the parts of a batch, each divided by the count of the
    /// whole, add up to that of the whole.
    pub divisor: Option<f64>,
}

impl CrossEntropy {
    fn check(&self, logits: &Tensor, targets: &Tensor) -> Result<(), TensorError> {
        indices("cross_entropy", targets)?;
        let smoothing = self.label_smoothing;
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(TensorError::Probability { op: "cross_entropy", probability: smoothing.to_string() });
        }
        let (rows, targets_shape) = (logits.shape(), targets.shape());
        if rows.ndim() == 2 && targets_shape.ndim() == 1 && targets_shape[0] == rows[0] {
            return Ok(());
        }
        Err(mismatch("cross_entropy", &[logits, targets]))
    }
}

struct CrossEntropyFunction {
    options: CrossEntropy,
}

impl Function for CrossEntropyFunction {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (logits, targets) = (inputs[0].packed("cross_entropy")?, inputs[1].packed("cross_entropy")?);
        computed("cross_entropy", logits.dtype())?;
        let device = one_device("cross_entropy", &[&logits, &targets])?;
        self.options.check(&logits, &targets)?;
        context.save(&[&logits, &targets]);
        Ok(vec![on(device).cross_entropy(&logits, &targets, self.options)?])
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let mut saved = context.into_saved();
        let (Some(gradient), Some(targets), Some(logits)) = (&gradients[0], saved.pop(), saved.pop()) else {
            return Ok(vec![None, None]);
        };
        let gradient = gradient.packed("cross_entropy")?;
        let backend = on(logits.device());
        // The logits belong to this rule alone unless somebody kept them.
        Ok(vec![Some(backend.cross_entropy_gradient(logits, &targets, &gradient, self.options)?), None])
    }
}

/// The most logits that exist at a time. Every part reads the weight again and
/// adds to its gradient, so there should be few.
const CHUNK: usize = 1 << 24;

struct ProjectedCrossEntropy {
    options: CrossEntropy,
}

impl ProjectedCrossEntropy {
    /// How many of some targets count.
    fn counted(&self, targets: &Tensor) -> Result<usize, TensorError> {
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

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [hidden, weight, targets] = inputs else {
            return Err(mismatch(self.name(), &inputs.iter().collect::<Vec<_>>()));
        };
        let (device, dtype) = common(self.name(), &[hidden, weight])?;
        one_device(self.name(), &[hidden, targets])?;
        computed(self.name(), dtype)?;
        let (&[rows, width], &[classes, depth]) = (&hidden.shape()[..], &weight.shape()[..]) else {
            return Err(mismatch(self.name(), &[hidden, weight, targets]));
        };
        if width != depth {
            return Err(mismatch(self.name(), &[hidden, weight, targets]));
        }
        self.options.check(&Tensor::nothing(Shape::new(&[rows, classes])?, dtype), targets)?;
        let total = self.counted(targets)?;
        // Where the weight gets no gradient, there is room for as much again.
        let most = if context.needs(1) { CHUNK } else { 2 * CHUNK } / classes.max(1);
        let parts = rows.div_ceil(most.max(1)).max(1);
        let at_once = rows.div_ceil(parts).max(1);
        let divisor = self.options.divisor.unwrap_or(total as f64);
        let empty = if divisor == 0.0 { f64::NAN } else { 0.0 };
        // Half types hold too little of a loss, and of sums over many rows.
        let wide = if dtype.size() < 4 { DType::F32 } else { dtype };
        let mut loss = Tensor::full(empty, wide, &[], device)?;
        let options = CrossEntropy { divisor: None, ..self.options };
        let mut of_hidden = Vec::new();
        let mut of_weight: Option<Tensor> = None;
        for start in (0..rows).step_by(at_once) {
            let count = at_once.min(rows - start);
            let part = hidden.narrow(0, start, count)?;
            let targets = targets.narrow(0, start, count)?.packed(self.name())?;
            let counted = self.counted(&targets)?;
            let share = counted as f64 / divisor;
            if counted == 0 {
                of_hidden.push(Tensor::full(0.0, dtype, &[count, width], device)?);
                continue;
            }
            let logits = part.linear(weight, None, None)?.cast(wide)?;
            let part_loss = on(device).cross_entropy(&logits, &targets, options)?;
            loss.add_assign(&part_loss.scale(share)?)?;
            if !context.needs(0) && !context.needs(1) {
                continue;
            }
            let share = Tensor::full(share, wide, &[], device)?;
            let of_logits =
                on(device).cross_entropy_gradient(logits, &targets, &share, options)?.cast(dtype)?;
            if context.needs(0) {
                of_hidden.push(of_logits.matmul(weight)?);
            }
            if context.needs(1) {
                let of_part = of_logits.transpose(0, 1)?.matmul(&part)?;
                match &mut of_weight {
                    Some(sum) => sum.add_assign(&of_part.cast(wide)?)?,
                    // One part is as exact as it will be.
                    None if at_once == rows => of_weight = Some(of_part),
                    None => of_weight = Some(of_part.cast(wide)?),
                }
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

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let needs = [context.needs(0), context.needs(1)];
        let Some(g) = &gradients[0] else { return Ok(vec![None, None, None]) };
        // Mostly it is one, and large tensors stay as they are. Where there are
        // no numbers, that is what is counted.
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
    /// The mean cross-entropy of rows of logits with `i64` targets. Where
    /// nobody else holds the logits, their gradient takes their memory.
    pub fn cross_entropy(&self, targets: &Self, options: CrossEntropy) -> Result<Self, TensorError> {
        apply_one(CrossEntropyFunction { options }, &[self.clone(), targets.clone()])
    }

    /// The mean cross-entropy of `self @ weightᵀ` with `i64` targets, some rows
    /// at a time: all logits together never exist. The weight is
    /// `[classes, width]`. Gradients are computed on the way, so this costs
    /// little more forward than forward and backward together.
    pub fn projected_cross_entropy(
        &self,
        weight: &Self,
        targets: &Self,
        options: CrossEntropy,
    ) -> Result<Self, TensorError> {
        let inputs = [self.clone(), weight.clone(), targets.clone()];
        apply_one(ProjectedCrossEntropy { options }, &inputs)
    }
}
