//! Distillation: the model imitates the probabilities of a teacher.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_dtensor::{DTensor, local_map};
use weightloom_layout::Shape;
use weightloom_nn::{ForwardArgs, IGNORED, Input, Model, NnError};
use weightloom_tensor::{CrossEntropy, Device, Result, Tensor, TensorError, no_grad};

use super::batch::{LossBatch, LossNeeds};
use super::preference::layouts;
use super::token_logprobs::constant;
use super::{Loss, LossArgs, LossError, LossFactory, MetricSums};
use crate::extensions::OptionProblem;

/// Options of `distillation`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DistillationOptions {
    /// Weights of the teacher: a name or a folder, as `model.weights_path`. Its
    /// vocabulary is that of the model.
    teacher: String,
    /// Divides the logits of both models. The divergence is multiplied by its square,
    /// so that its gradient does not shrink.
    temperature: f64,
    /// Share of the divergence in the loss; the rest is the cross-entropy of the next
    /// token.
    alpha: f64,
    /// Number of most likely tokens of the teacher to imitate, whose probabilities are
    /// scaled to add up to 1. 0 imitates all.
    top_k: usize,
}

impl Default for DistillationOptions {
    fn default() -> Self {
        Self { teacher: String::new(), temperature: 1.0, alpha: 0.5, top_k: 0 }
    }
}

/// Builds the distillation loss.
#[derive(Debug)]
pub(super) struct DistillationFactory;

impl LossFactory for DistillationFactory {
    type Options = DistillationOptions;

    fn name(&self) -> &'static str {
        "distillation"
    }

    fn summary(&self) -> &'static str {
        "Kullback-Leibler divergence of the model from a teacher, and cross-entropy."
    }

    fn problems(&self, options: &DistillationOptions) -> Vec<OptionProblem> {
        let mut problems = Vec::new();
        if options.teacher.trim().is_empty() {
            problems.push(OptionProblem::new("teacher", "it is required: name weights, such as a folder"));
        }
        let temperature = options.temperature;
        if !(temperature.is_finite() && temperature > 0.0) {
            problems
                .push(OptionProblem::new("temperature", format!("{temperature} is not a positive number")));
        }
        if !(0.0..=1.0).contains(&options.alpha) {
            problems.push(OptionProblem::new("alpha", format!("{} is not from 0 to 1", options.alpha)));
        }
        problems
    }

    fn build(&self, options: DistillationOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(DistillationLoss { options }))
    }
}

struct DistillationLoss {
    options: DistillationOptions,
}

const NAME: &str = "distillation_loss";

/// The metric: the mean divergence of a target.
const DIVERGENCE: &str = "distillation/divergence";

/// The error of a loss that is computed without a teacher.
#[derive(Debug, thiserror::Error)]
#[error("no logits of a teacher")]
struct NoTeacher;

impl Loss for DistillationLoss {
    fn needs(&self) -> LossNeeds {
        LossNeeds {
            teacher: Some(self.options.teacher.clone()),
            metrics: &[DIVERGENCE],
            ..LossNeeds::default()
        }
    }

    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        let missing = || TensorError::from_function(NAME, NoTeacher);
        let teacher = args.batch.teacher.ok_or_else(missing)?;
        let (logits, targets) = (args.logits()?, args.row_targets()?);
        let (layout, sum) = layouts(args.model)?;
        let batch = (args.divisor, args.batch.metrics);
        let work = |x: &[Tensor]| Ok(vec![self.options.loss(&x[0], &x[1], &x[2], batch)?]);
        let operands = [(&logits, layout), (teacher, layout), (&targets, layout)];
        let made = local_map(NAME, &operands, &[(sum, Shape::default())], work)?;
        Ok(made.into_iter().next().ok_or_else(missing)?)
    }
}

impl DistillationOptions {
    /// This rank's part of the loss.
    fn loss(
        &self,
        logits: &Tensor,
        teacher: &Tensor,
        targets: &Tensor,
        (divisor, metrics): (f64, Option<&MetricSums>),
    ) -> Result<Tensor> {
        let counted = counted(targets)?;
        let divergence = self.divergence(logits, teacher, &counted)?;
        if let Some(metrics) = metrics.filter(|_| divergence.device() != Device::Meta) {
            let sum = f64::from(divergence.detach().item::<f32>()?);
            metrics.add_sum(DIVERGENCE, sum, counted.iter().map(|&one| f64::from(one)).sum());
        }
        let divergence = divergence.scale(self.alpha / divisor)?;
        if self.alpha == 1.0 {
            return Ok(divergence);
        }
        let options =
            CrossEntropy { ignore_index: Some(IGNORED), label_smoothing: 0.0, divisor: Some(divisor) };
        divergence.add(&logits.cross_entropy(targets, options)?.scale(1.0 - self.alpha)?)
    }

    /// The divergence of the teacher from the model, summed over rows that are not
    /// ignored: `T² · Σ p · (log p - log q)` with probabilities at the temperature `T`.
    fn divergence(&self, logits: &Tensor, teacher: &Tensor, counted: &[f32]) -> Result<Tensor> {
        let cooled = |logits: &Tensor| logits.scale(1.0 / self.temperature);
        let (logits, teacher) = (cooled(logits)?, cooled(&teacher.detach())?);
        let rows = logits.shape()[0];
        let count = self.top_k.min(logits.shape()[1]);
        let (teacher, of_model) = match count {
            0 => (teacher.log_softmax(1)?, logits.log_softmax(1)?),
            _ => {
                let (values, index) = teacher.topk(count, 1)?;
                let log_sum = logits.logsumexp(&[1])?.reshape(&Shape::new(&[rows, 1])?)?;
                (values.log_softmax(1)?, logits.gather(1, &index)?.sub(&log_sum)?)
            }
        };
        let of_rows = teacher.exp()?.mul(&teacher.sub(&of_model)?)?.sum(&[1])?;
        let counted = of_rows.mul(&constant(counted, &[rows], logits.device())?)?;
        counted.sum_all()?.scale(self.temperature * self.temperature)
    }
}

/// The logits of a teacher in `f32`, `[batch · time, vocabulary]`, without gradients.
pub(crate) fn teacher_logits(
    teacher: &dyn Model,
    inputs: DTensor,
    documents: Option<DTensor>,
) -> Result<DTensor, NnError> {
    no_grad(|| {
        let args = ForwardArgs { documents, ..ForwardArgs::default() };
        let hidden = teacher.forward(Input::Tokens(inputs.clone()), args)?;
        let (adapter, batch) = (None, LossBatch::default());
        LossArgs { model: teacher, hidden: &hidden, targets: &inputs, divisor: 1.0, adapter, batch }.logits()
    })
}

/// 1 for each target that is not ignored, 0 for the others.
fn counted(targets: &Tensor) -> Result<Vec<f32>> {
    match targets.device() {
        Device::Meta => Ok(vec![0.0; targets.shape().volume()]),
        _ => {
            let targets = targets.to_vec::<i64>()?;
            Ok(targets.into_iter().map(|target| f32::from(u8::from(target != IGNORED))).collect())
        }
    }
}

#[cfg(test)]
mod tests;
