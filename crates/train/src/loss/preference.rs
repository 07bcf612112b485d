//! Losses of preferences: functions of the log-probabilities of completions.
//!
//! Each is a sum over examples, divided by the examples of the whole batch, so it
//! does not depend on micro-batches and ranks. The formulas are those of TRL,
//! with which a test compares values and gradients.

mod dpo;
mod kto;
mod orpo;
mod simpo;

use weightloom_dtensor::{DTensor, local_map};
use weightloom_layout::{DType, Layout, Placement, ReduceOp, Shape};
use weightloom_nn::{AdapterSpec, IGNORED, Model, NnError};
use weightloom_tensor::{Device, Result, Tensor, TensorError};

use super::batch::{BatchTotals, LossBatch, LossNeeds};
use super::token_logprobs::{constant, token_logprobs};
use super::{Loss, LossArgs};
use crate::data::Supervision;
use crate::engine::MicroBatch;

pub(super) use dpo::DpoFactory;
pub(super) use kto::KtoFactory;
pub(super) use orpo::OrpoFactory;
pub(super) use simpo::SimpoFactory;

/// A loss of each example, and optionally the likelihood of chosen completions.
trait Objective: Send + Sync {
    fn needs(&self) -> LossNeeds;

    /// The likelihood that is maximized in addition.
    fn likelihood(&self) -> Likelihood {
        Likelihood::Unused
    }

    /// The loss of each example, `[examples]`.
    fn losses(&self, completions: &Completions<'_>) -> Result<Tensor>;

    /// Metrics of one example.
    fn report(&self, example: &Example, add: &mut dyn FnMut(&'static str, f64));
}

/// The negative log-likelihood that is added to the losses of examples: a mean over
/// tokens of chosen completions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Likelihood {
    Unused,
    /// Of the tokens of completions, with this weight.
    Completions(f64),
    /// Of the tokens of prompts and completions, with this weight.
    Sequences(f64),
}

/// The completions of a micro-batch, on one rank.
struct Completions<'a> {
    /// Summed log-probabilities, `[sequences]`.
    sums: Tensor,
    /// Number of tokens.
    lengths: Vec<f32>,
    /// Summed log-probabilities under the reference; zeros without one.
    reference: Vec<f32>,
    labels: &'a [bool],
    divergence: f64,
}

impl Completions<'_> {
    /// A constant with a number for each example.
    fn constant(&self, values: &[f32]) -> Result<Tensor> {
        constant(values, &[values.len()], self.sums.device())
    }

    /// Log-probabilities per token, `[sequences]`.
    fn means(&self) -> Result<Tensor> {
        let shares: Vec<f32> = self.lengths.iter().map(|length| 1.0 / length.max(1.0)).collect();
        self.sums.mul(&self.constant(&shares)?)
    }

    /// Log-ratios to the reference, `[sequences]`.
    fn ratios(&self) -> Result<Tensor> {
        self.sums.sub(&self.constant(&self.reference)?)
    }

    /// Splits values of chosen and rejected completions, which alternate, into those
    /// of the chosen and those of the rejected ones, `[pairs]`.
    fn split_pairs(values: &Tensor) -> Result<[Tensor; 2]> {
        let pairs = values.shape()[0] / 2;
        let both = values.reshape(&Shape::new(&[pairs, 2])?)?;
        let column = |number| both.narrow(1, number, 1)?.reshape(&Shape::new(&[pairs])?);
        Ok([column(0)?, column(1)?])
    }

    /// The examples with values; none of meta tensors.
    fn examples(&self, documents: Supervision) -> Result<Vec<Example>> {
        if self.sums.device() == Device::Meta {
            return Ok(Vec::new());
        }
        let sums = self.sums.detach().to_vec::<f32>()?;
        let completion = |at: usize| CompletionLogprob {
            sum: f64::from(sums[at]),
            reference: f64::from(self.reference[at]),
            length: f64::from(self.lengths[at]),
        };
        let of = |number: usize| match documents {
            Supervision::Preferences => Example {
                first: completion(2 * number),
                second: completion(2 * number + 1),
                desirable: true,
                divergence: self.divergence,
            },
            Supervision::Tokens | Supervision::Labels => Example {
                first: completion(number),
                second: completion(number),
                desirable: self.labels.get(number).copied().unwrap_or(false),
                divergence: self.divergence,
            },
        };
        Ok((0..sums.len() / sequences(documents)).map(of).collect())
    }
}

/// Sequences of an example that are in the same micro-batch.
fn sequences(documents: Supervision) -> usize {
    match documents {
        Supervision::Preferences => 2,
        Supervision::Tokens | Supervision::Labels => 1,
    }
}

/// The log-probability of a completion.
#[derive(Clone, Copy, Debug)]
struct CompletionLogprob {
    sum: f64,
    reference: f64,
    length: f64,
}

impl CompletionLogprob {
    fn ratio(&self) -> f64 {
        self.sum - self.reference
    }

    fn mean(&self) -> f64 {
        self.sum / self.length.max(1.0)
    }
}

/// One example: the chosen and the rejected completion, or the labelled one.
#[derive(Clone, Copy, Debug)]
struct Example {
    first: CompletionLogprob,
    second: CompletionLogprob,
    desirable: bool,
    divergence: f64,
}

impl Example {
    /// Whether it is padding.
    fn is_empty(&self) -> bool {
        self.first.length == 0.0
    }
}

/// Adds the metrics of a pair that all losses of pairs have.
fn report_pair(rewards: [f64; 2], logprobs: [f64; 2], add: &mut dyn FnMut(&'static str, f64)) {
    let [chosen, rejected] = rewards;
    add("rewards/chosen", chosen);
    add("rewards/rejected", rejected);
    add("rewards/margins", chosen - rejected);
    add("rewards/accuracies", if chosen > rejected { 1.0 } else { 0.0 });
    add("logps/chosen", logprobs[0]);
    add("logps/rejected", logprobs[1]);
}

/// `log σ(x)` of `[n]`. A log-sum-exp has the right gradient at 0, where training
/// starts.
fn log_sigmoid(x: &Tensor) -> Result<Tensor> {
    let column = Shape::new(&[x.shape()[0], 1])?;
    let zeros = Tensor::zeros(x.dtype(), &column, x.device())?;
    Tensor::cat(&[&zeros, &x.neg()?.reshape(&column)?], 1)?.logsumexp(&[1])?.neg()
}

/// `-log σ(x)`, of which a share of the labels is wrong.
fn smoothed_loss(x: &Tensor, smoothing: f64) -> Result<Tensor> {
    let loss = log_sigmoid(x)?.scale(smoothing - 1.0)?;
    match smoothing > 0.0 {
        true => loss.sub(&log_sigmoid(&x.neg()?)?.scale(smoothing)?),
        false => Ok(loss),
    }
}

/// A loss of preferences.
struct PreferenceLoss<T>(T);

impl<T: Objective> Loss for PreferenceLoss<T> {
    fn needs(&self) -> LossNeeds {
        self.0.needs()
    }

    fn divisor(&self, totals: &BatchTotals) -> f64 {
        (totals.examples as f64).max(1.0)
    }

    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        let rows = args.batch.rows.ok_or_else(no_rows)?;
        let logits = args.logits()?;
        let (layout, sum) = layouts(args.model)?;
        let work = |x: &[Tensor]| Ok(vec![value(&self.0, &x[0], rows, (&args.batch, args.divisor))?]);
        let made = local_map(NAME, &[(&logits, layout)], &[(sum, Shape::default())], work)?;
        made.into_iter().next().ok_or_else(no_rows)
    }
}

const NAME: &str = "preference_loss";

/// The error of a loss that is computed without the rows of the micro-batch.
#[derive(Debug, thiserror::Error)]
#[error("no rows of preferences")]
struct NoRows;

fn no_rows() -> NnError {
    TensorError::from_function(NAME, NoRows).into()
}

/// The layout of this rank's rows, and of a scalar that is a sum over them.
pub(super) fn layouts(model: &dyn Model) -> Result<(Layout, Layout), NnError> {
    let rows = model.plan().batch_layout()?;
    let mesh = rows.mesh();
    let placement = |axis: usize| match rows.placements()[axis] {
        Placement::Shard(_) if mesh.axis_size(axis) > 1 => Placement::Partial(ReduceOp::Sum),
        _ => Placement::Replicate,
    };
    let sum = Layout::new(mesh, &(0..mesh.ndim()).map(placement).collect::<Vec<_>>())?;
    Ok((rows, sum))
}

/// This rank's part of the loss.
fn value(
    objective: &impl Objective,
    logits: &Tensor,
    rows: &MicroBatch,
    (batch, divisor): (&LossBatch<'_>, f64),
) -> Result<Tensor> {
    let likelihood = objective.likelihood();
    let documents = objective.needs().documents;
    let targets = match likelihood {
        Likelihood::Sequences(_) => rows.next_tokens(),
        Likelihood::Unused | Likelihood::Completions(_) => rows.targets.clone(),
    };
    let logprobs = token_logprobs(logits, &targets)?;
    let sums = completion_sums(&logprobs, rows)?;
    let lengths: Vec<f32> = rows
        .rows_of_targets()
        .map(|row| row.iter().filter(|&&target| target != IGNORED).count() as f32)
        .collect();
    let preferences = rows.preferences.as_ref();
    let completions = Completions {
        reference: batch.reference.map_or_else(|| vec![0.0; lengths.len()], <[f32]>::to_vec),
        labels: preferences.map_or(&[], |preferences| &preferences.labels),
        divergence: batch.divergence,
        sums,
        lengths,
    };
    let step = sequences(documents);
    let weight = |length: &f32| if *length > 0.0 { (1.0 / divisor) as f32 } else { 0.0 };
    let weights: Vec<f32> = completions.lengths.iter().step_by(step).map(weight).collect();
    let losses = objective.losses(&completions)?;
    let mut loss = losses.mul(&completions.constant(&weights)?)?.sum_all()?;
    if let Some((weight, tokens)) = likelihood_of(likelihood, &batch.totals) {
        let mask = chosen_mask(&targets, rows, step);
        let of_chosen = logprobs.mul(&constant(&mask, &[mask.len()], logprobs.device())?)?.sum_all()?;
        if let Some(metrics) = batch.metrics.filter(|_| of_chosen.device() != Device::Meta) {
            let sum = f64::from(of_chosen.detach().item::<f32>()?);
            metrics.add_sum("nll_loss", -sum, mask.iter().map(|&one| f64::from(one)).sum());
        }
        loss = loss.sub(&of_chosen.scale(weight / tokens)?)?;
    }
    if let Some(metrics) = batch.metrics {
        for example in completions.examples(documents)?.iter().filter(|example| !example.is_empty()) {
            objective.report(example, &mut |name, value| metrics.add(name, value));
        }
    }
    Ok(loss)
}

/// The weight of a likelihood, and the tokens that it is a mean over.
fn likelihood_of(likelihood: Likelihood, totals: &BatchTotals) -> Option<(f64, f64)> {
    let (weight, tokens) = match likelihood {
        Likelihood::Unused => return None,
        Likelihood::Completions(weight) => (weight, totals.chosen_targets),
        Likelihood::Sequences(weight) => (weight, totals.chosen_tokens),
    };
    Some((weight, (tokens as f64).max(1.0)))
}

/// The summed log-probability of the completion of each sequence, `[sequences]`.
fn completion_sums(logprobs: &Tensor, rows: &MicroBatch) -> Result<Tensor> {
    let mask: Vec<f32> = rows.targets.iter().map(|&target| f32::from(u8::from(target != IGNORED))).collect();
    let counted = logprobs.mul(&constant(&mask, &[mask.len()], logprobs.device())?)?;
    counted.reshape(&Shape::new(&[rows.rows, rows.seq_len()])?)?.sum(&[1])
}

/// 1 for each target of every `step`-th sequence, 0 for the others.
fn chosen_mask(targets: &[i64], rows: &MicroBatch, step: usize) -> Vec<f32> {
    let time = rows.seq_len().max(1);
    let counted = |(at, target): (usize, &i64)| {
        f32::from(u8::from(*target != IGNORED && (at / time).is_multiple_of(step)))
    };
    targets.iter().enumerate().map(counted).collect()
}

/// The summed log-probability of each completion of this rank, from the result of the
/// last stage.
pub(crate) fn completion_logprobs(
    model: &dyn Model,
    hidden: &DTensor,
    rows: &MicroBatch,
    adapter: Option<AdapterSpec<'_>>,
) -> Result<Vec<f32>, NnError> {
    let targets = DTensor::from_local(
        model.dist(),
        Tensor::zeros(DType::I64, &[rows.rows, rows.seq_len()], hidden.device())?,
        model.plan().batch_layout()?,
        &Shape::new(&[hidden.shape()[0], hidden.shape()[1]])?,
    )?;
    let batch = LossBatch::default();
    let logits = LossArgs { model, hidden, targets: &targets, divisor: 1.0, adapter, batch }.logits()?;
    let (layout, _) = layouts(model)?;
    let shape = Shape::new(&[hidden.shape()[0]])?;
    let work = |x: &[Tensor]| Ok(vec![completion_sums(&token_logprobs(&x[0], &rows.targets)?, rows)?]);
    let made = local_map("completion_logprobs", &[(&logits, layout)], &[(layout, shape)], work)?;
    let sums = made.into_iter().next().ok_or_else(no_rows)?;
    match sums.device() {
        Device::Meta => Ok(vec![0.0; rows.rows]),
        _ => Ok(sums.to_local().to_vec::<f32>()?),
    }
}

#[cfg(test)]
mod tests;
