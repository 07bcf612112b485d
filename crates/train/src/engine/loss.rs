//! Losses on an engine: what they need beside the result of the last stage.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weightloom_dtensor::{DTensor, Role};
use weightloom_gang::GangExt;
use weightloom_layout::ReduceOp;
use weightloom_nn::{AdapterSpec, ForwardArgs, Model};
use weightloom_tensor::no_grad;

use super::{Engine, LossPurpose, MicroBatch, StageModel};
use crate::data::Supervision;
use crate::error::TrainError;
use crate::loss::{
    BatchTotals, LossArgs, LossBatch, MetricSums, Reference, SelectedLoss, completion_logprobs,
    teacher_logits,
};

/// What is known of the batch in progress.
#[derive(Default)]
pub(super) struct LossState {
    prepared: Mutex<Prepared>,
    metrics: MetricSums,
}

#[derive(Clone, Copy, Default)]
struct Prepared {
    totals: BatchTotals,
    divergence: f64,
}

impl LossState {
    fn locked(&self) -> MutexGuard<'_, Prepared> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Totals of evaluation rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EvalTotals {
    counts: [u64; 4],
    /// Sum and number of the log-ratios of mismatched completions.
    divergence: [f64; 2],
}

impl EvalTotals {
    /// Adds those of other rows.
    pub(crate) fn add(&mut self, other: Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.divergence.iter_mut().zip(other.divergence).for_each(|(sum, part)| *sum += part);
    }
}

/// The mean of log-ratios from their sum and number, at least 0.
fn mean_divergence([sum, count]: [f64; 2]) -> f64 {
    (sum / count.max(1.0)).max(0.0)
}

impl Engine {
    /// Trains with another loss than the model's own.
    pub fn set_loss(&mut self, loss: SelectedLoss) {
        self.loss_needs = loss.needs();
        self.loss_state =
            LossState { metrics: MetricSums::new(self.loss_needs.metrics), ..LossState::default() };
        self.loss = loss;
    }

    /// The documents that the loss trains on.
    pub fn supervision(&self) -> Supervision {
        self.loss_needs.documents
    }

    /// Sequences that a row of the data has.
    pub(super) fn sequences_of_rows(&self) -> usize {
        match self.loss_needs.documents {
            Supervision::Preferences => 2,
            // The second sequences of labelled completions are apart.
            Supervision::Tokens | Supervision::Labels => 1,
        }
    }

    /// Whether the loss compares with initial weights that training changes.
    pub(crate) fn forgets_reference(&self) -> bool {
        let adapted = self.stages.iter().any(|stage| stage.adapter.is_some());
        self.loss_needs.reference == Reference::Initial && !adapted
    }

    /// The model that the loss imitates, on the ranks of this one.
    pub fn set_teacher(&mut self, mut teacher: Box<dyn Model>) {
        for (_, value) in teacher.parameters_mut() {
            *value = value.parameter(Role::Frozen);
        }
        self.teacher = Some(teacher);
    }

    /// Counts the rows of a batch, and computes what its loss needs before the passes.
    /// Returns the divisor of the loss. Called by every rank.
    pub(crate) fn prepare_loss(&self, micros: &[MicroBatch]) -> Result<f64, TrainError> {
        let own = match self.counts_rows() {
            true => BatchTotals::of(micros, self.loss_needs.documents),
            false => BatchTotals::default(),
        };
        let mut counts = own.counts();
        self.gangs.root.all_reduce(&mut counts, ReduceOp::Sum)?;
        let totals = BatchTotals::from_counts(counts);
        self.loss_state.metrics.reset();
        let divergence = match self.loss_needs.documents {
            Supervision::Labels => self.divergence(micros)?,
            Supervision::Tokens | Supervision::Preferences => 0.0,
        };
        *self.loss_state.locked() = Prepared { totals, divergence };
        Ok(self.loss.divisor(&totals))
    }

    /// The metrics of the last batch: means over its examples on all ranks. Called by
    /// every rank.
    pub fn loss_metrics(&self) -> Result<BTreeMap<String, f64>, TrainError> {
        let metrics = &self.loss_state.metrics;
        if metrics.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut sums = metrics.flat();
        // Tensor-parallel ranks have the same rows; of a pipeline, only the last has any.
        if self.gangs.tp.rank() != 0 {
            sums.fill(0.0);
        }
        self.gangs.root.all_reduce(&mut sums, ReduceOp::Sum)?;
        Ok(metrics.means(&sums))
    }

    /// This rank's totals of some evaluation rows. Called by every rank.
    pub(crate) fn eval_totals(&self, micros: &[MicroBatch]) -> Result<EvalTotals, TrainError> {
        let totals = match self.counts_rows() {
            true => BatchTotals::of(micros, self.loss_needs.documents),
            false => BatchTotals::default(),
        };
        let divergence = match self.loss_needs.documents {
            Supervision::Labels => self.divergence_sums(micros)?,
            Supervision::Tokens | Supervision::Preferences => [0.0; 2],
        };
        Ok(EvalTotals { counts: totals.counts(), divergence })
    }

    /// Prepares the loss of evaluation rows with these totals, and begins new metrics.
    /// Returns the divisor of the loss, and the number of targets. Called by every rank.
    pub(crate) fn begin_evaluation(&self, own: EvalTotals) -> Result<(f64, u64), TrainError> {
        self.loss_state.metrics.reset();
        let EvalTotals { mut counts, divergence: mut sums } = own;
        self.gangs.root.all_reduce(&mut counts, ReduceOp::Sum)?;
        self.gangs.root.all_reduce(&mut sums, ReduceOp::Sum)?;
        let totals = BatchTotals::from_counts(counts);
        *self.loss_state.locked() = Prepared { totals, divergence: mean_divergence(sums) };
        Ok((self.loss.divisor(&totals), totals.targets))
    }

    /// The loss of the result of the last stage.
    pub(super) fn stage_loss(
        &self,
        stage: &StageModel,
        hidden: &DTensor,
        (rows, divisor): (&MicroBatch, f64),
        purpose: LossPurpose,
    ) -> Result<DTensor, TrainError> {
        let targets = stage.model.shard().batch(&rows.targets, rows.rows)?;
        let Prepared { totals, divergence } = *self.loss_state.locked();
        let reference = match self.loss_needs.reference {
            Reference::Initial => Some(self.reference_of(stage, rows)?),
            Reference::None => None,
        };
        let teacher = self.teacher.as_deref().map(|teacher| logits_of(teacher, rows)).transpose()?;
        let args = LossArgs {
            model: &*stage.model,
            hidden,
            targets: &targets,
            divisor,
            adapter: stage.change(),
            batch: LossBatch {
                rows: Some(rows),
                totals,
                reference: reference.as_deref(),
                divergence,
                teacher: teacher.as_ref(),
                metrics: Some(&self.loss_state.metrics),
            },
        };
        Ok(match purpose {
            LossPurpose::Training => self.loss.compute(&args)?,
            LossPurpose::Evaluation => self.loss.evaluate(&args)?,
        })
    }

    /// The log-probabilities of completions under the reference: known ones, or those of
    /// the model without its adapter.
    fn reference_of(&self, stage: &StageModel, rows: &MicroBatch) -> Result<Vec<f32>, TrainError> {
        match rows.preferences.as_ref().and_then(|preferences| preferences.reference.clone()) {
            Some(known) => Ok(known),
            None => self.completion_logprobs(stage, rows, None),
        }
    }

    /// The log-probabilities of this rank's completions.
    fn completion_logprobs(
        &self,
        stage: &StageModel,
        rows: &MicroBatch,
        adapter: Option<AdapterSpec<'_>>,
    ) -> Result<Vec<f32>, TrainError> {
        let args = ForwardArgs { adapters: adapter.into(), ..ForwardArgs::default() };
        no_grad(|| {
            let hidden = self.forward_stage(stage, rows, None, args)?;
            Ok(completion_logprobs(&*stage.model, &hidden, rows, adapter)?)
        })
    }

    /// The log-probabilities of the completions of this rank's rows under the weights as
    /// they are, without an adapter. Called by every rank.
    pub(crate) fn initial_logprobs(&self, rows: &MicroBatch) -> Result<Vec<f32>, TrainError> {
        self.completion_logprobs(self.stage(0)?, rows, None)
    }

    /// The mean log-ratio of mismatched completions.
    fn divergence(&self, micros: &[MicroBatch]) -> Result<f64, TrainError> {
        let mut sums = self.divergence_sums(micros)?;
        self.gangs.root.all_reduce(&mut sums, ReduceOp::Sum)?;
        Ok(mean_divergence(sums))
    }

    /// The sum and number of the log-ratios of this rank's mismatched completions.
    fn divergence_sums(&self, micros: &[MicroBatch]) -> Result<[f64; 2], TrainError> {
        let stage = self.stage(0)?;
        let mut sums = [0.0, 0.0];
        for micro in micros {
            let preferences = micro.preferences.as_ref();
            let Some(rows) = preferences.and_then(|preferences| preferences.mismatched.as_ref()) else {
                continue;
            };
            let model = self.completion_logprobs(stage, rows, stage.change())?;
            let reference = self.reference_of(stage, rows)?;
            for ((model, reference), targets) in model.iter().zip(reference).zip(rows.rows_of_targets()) {
                if targets.iter().any(|&target| target != weightloom_nn::IGNORED) {
                    sums[0] += f64::from(*model) - f64::from(reference);
                    sums[1] += 1.0;
                }
            }
        }
        if !self.counts_rows() {
            sums = [0.0; 2];
        }
        Ok(sums)
    }
}

/// The logits of the teacher for the rows of a micro-batch.
fn logits_of(teacher: &dyn Model, rows: &MicroBatch) -> Result<DTensor, TrainError> {
    let documents = rows.documents.as_ref();
    let documents = documents.map(|starts| teacher.shard().batch(starts, rows.rows)).transpose()?;
    Ok(teacher_logits(teacher, teacher.shard().batch(&rows.inputs, rows.rows)?, documents)?)
}
