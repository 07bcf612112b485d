//! The optimizer step.

use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_dtensor::{DTensor, global_norm};
use weightloom_gang::{Elements, ElementsMut, GangError, GangExt};
use weightloom_layout::{DType, ReduceOp, Shape};
use weightloom_tensor::{Tensor, TensorError};

use super::layer_norms::{LayerSums, NormsByLayer};
use super::{Engine, MicroBatch};
use crate::config::PipelineSchedule;
use crate::error::TrainError;
use crate::optimizer::{StepInfo, update};
use crate::pipeline::Schedule;
use crate::spec::clip_factor;

/// The tag of the gradients that stages with tied weights exchange.
const TIED: u32 = 0x3000_0001;

/// Number and learning rate of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct StepSettings {
    /// Step number, starting at 1.
    pub number: u64,
    pub learning_rate: f64,
}

/// Hooks into a step. `()` does nothing and does not clip.
#[allow(unused_variables, reason = "named for documentation")]
pub trait StepHooks {
    /// Called after the backward pass of each micro-batch on each stage.
    fn microbatch_end(&mut self, done: usize, total: usize) -> Result<(), TrainError> {
        Ok(())
    }

    /// Whether to update the weights after a step with finite loss and gradients. All
    /// ranks must decide alike.
    fn judge(&mut self, result: &StepResult) -> StepVerdict {
        StepVerdict::Update
    }

    /// Whether to measure the norms of layers in this step. All ranks must decide
    /// alike.
    fn wants_layer_norms(&self) -> bool {
        false
    }

    /// Called with the norms of layers, if they are wanted.
    fn layer_norms(&mut self, norms: NormsByLayer) {}

    /// The factor to multiply gradients by, given the norm of all of them.
    fn clip(&mut self, gradient_norm: f64) -> Result<f64, TrainError> {
        Ok(1.0)
    }
}

impl StepHooks for () {}

/// Whether a step updates the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepVerdict {
    /// Update the weights.
    #[default]
    Update,
    /// Leave the weights and the optimizer as they are.
    Discard,
}

/// Clips gradients to a maximum norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipNorm(pub f64);

impl StepHooks for ClipNorm {
    fn clip(&mut self, gradient_norm: f64) -> Result<f64, TrainError> {
        Ok(clip_factor(gradient_norm, self.0))
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Mean loss over the targets of the global batch.
    pub loss: f64,
    /// Norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// Number of targets in the global batch.
    pub targets: u64,
}

/// A parameter that the first and the last stage share, and their pipeline ranks.
pub(crate) struct Tied {
    pub(crate) name: String,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// Gradients of one stage, by name.
type StageGradients = BTreeMap<String, DTensor>;

impl Engine {
    /// Runs the forward and backward passes, reduces and clips gradients, and
    /// updates the weights. Called by every rank with its own rows. Leaves the
    /// weights unchanged if the loss or the norm is not finite, or if memory runs out
    /// ([`TrainError::OutOfMemory`]) before the update.
    pub fn step(
        &mut self,
        settings: &StepSettings,
        micros: &[MicroBatch],
        hooks: &mut dyn StepHooks,
    ) -> Result<StepResult, TrainError> {
        let (result, gradients) = self.passes(settings, micros, hooks).map_err(|error| {
            let sequences = micros.iter().map(|micro| micro.rows).max().unwrap_or(0);
            let rows = sequences / self.sequences_of_rows();
            error.out_of_memory_in(settings.number, rows)
        })?;
        let StepResult { loss, gradient_norm, .. } = result;
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Ok(result);
        }
        if hooks.judge(&result) == StepVerdict::Discard {
            return Ok(result);
        }
        let scale = hooks.clip(gradient_norm)?;
        let mut sums = hooks.wants_layer_norms().then(LayerSums::default);
        let (rank, groups) = (self.dist.rank(), self.layer_groups(sums.as_ref()));
        let Self { stages, optimizer, .. } = self;
        for ((stage, mut gradients), groups) in stages.iter_mut().zip(gradients).zip(groups) {
            let mut states = std::mem::take(&mut stage.states);
            let decays = std::mem::take(&mut stage.decays);
            let rates = std::mem::take(&mut stage.rates);
            let mut all = || -> Result<(), TrainError> {
                for (name, value) in stage.trained_mut() {
                    let missing = || TrainError::NoGradient { name: name.clone() };
                    let gradient = gradients.remove(&name).ok_or_else(missing)?;
                    let states = states.get_mut(&name).ok_or_else(missing)?;
                    let info = StepInfo {
                        number: settings.number,
                        learning_rate: settings.learning_rate * rates.get(&name).copied().unwrap_or(1.0),
                        weight_decay: decays.get(&name).copied().unwrap_or(0.0),
                        gradient_scale: scale,
                    };
                    let old = groups.get(&name).map(|group| (group, value.to_local().detach()));
                    update(&**optimizer, &info, value, &gradient, &mut states.tensors)?;
                    if let (Some(sums), Some((group, old))) = (&mut sums, old) {
                        sums.add(rank, group, value, [&old, gradient.to_local()])?;
                    }
                }
                Ok(())
            };
            let done = all();
            (stage.states, stage.decays, stage.rates) = (states, decays, rates);
            done?;
        }
        if let Some(sums) = sums {
            hooks.layer_norms(self.layer_norms(&sums)?);
        }
        Ok(result)
    }

    /// All that changes no weights.
    fn passes(
        &mut self,
        settings: &StepSettings,
        micros: &[MicroBatch],
        hooks: &mut dyn StepHooks,
    ) -> Result<(StepResult, Vec<StageGradients>), TrainError> {
        let targets = self.count_targets(micros)?;
        let divisor = self.prepare_loss(micros)?;
        let share = self.forward_backward(settings, micros, divisor, hooks)?;
        let loss = self.loss(share)?;
        let gradients = self.gradients()?;
        let gradient_norm = self.norm(&gradients)?;
        Ok((StepResult { loss, gradient_norm, targets }, gradients))
    }

    /// Whether a step that ran [out of memory](TrainError::OutOfMemory) can be
    /// [split further](Self::split_further): on a single rank, since others would wait
    /// for its gradients, with a single stage.
    pub fn can_split_further(&self) -> bool {
        self.gangs.root.size() == 1 && self.stage_count == 1
    }

    /// Prepares for the same step in this many micro-batches.
    pub fn split_further(&mut self, micro_batches: usize) -> Result<(), TrainError> {
        let kind = PipelineSchedule::OneForwardOneBackward;
        self.schedule = Arc::new(Schedule::new(kind, 1, 1, micro_batches)?);
        for stage in &self.stages {
            for (_, value) in stage.trained() {
                value.zero_grad()?;
            }
        }
        Ok(())
    }

    /// Whether this rank counts its rows: tensor- and pipeline-parallel ranks
    /// have the same ones.
    pub(super) fn counts_rows(&self) -> bool {
        self.gangs.tp.rank() == 0 && self.gangs.pp.rank() == 0
    }

    /// The number of targets in the rows of all ranks.
    pub fn count_targets(&self, micros: &[MicroBatch]) -> Result<u64, TrainError> {
        let counted = |target: &&i64| **target != weightloom_nn::IGNORED;
        let own: usize = micros.iter().map(|micro| micro.targets.iter().filter(counted).count()).sum();
        let mut total = [if self.counts_rows() { own as u64 } else { 0 }];
        self.gangs.root.all_reduce(&mut total, ReduceOp::Sum)?;
        Ok(total[0])
    }

    /// The loss: the sum of the shares of all ranks.
    pub fn loss(&self, share: f64) -> Result<f64, TrainError> {
        let mut total = [share];
        self.gangs.root.all_reduce(&mut total, ReduceOp::Sum)?;
        Ok(total[0])
    }

    /// The gradients of each stage, reduced over ranks.
    fn gradients(&mut self) -> Result<Vec<StageGradients>, TrainError> {
        // Start all reductions before waiting for the first.
        for stage in &self.stages {
            for (_, value) in stage.trained() {
                value.reduce_gradient()?;
            }
        }
        let mut all = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let mut gradients = BTreeMap::new();
            for (name, value) in stage.trained() {
                let gradient = value.take_gradient()?;
                let gradient = gradient.ok_or_else(|| TrainError::NoGradient { name: name.clone() })?;
                gradients.insert(name, gradient);
            }
            all.push(gradients);
        }
        self.add_tied_gradients(&mut all)?;
        Ok(all)
    }

    /// The parameter that the first and last stage share, such as a tied embedding,
    /// and their pipeline ranks, which may be the same.
    pub(crate) fn tied(&self) -> Option<Tied> {
        let name = self.stages.first()?.model.definition().tied_parameter()?.to_owned();
        let last = self.stage_count.checked_sub(1).filter(|last| *last > 0)?;
        Some(Tied { name, first: 0, last: last % self.gangs.pp.size() })
    }

    /// The index of a stage among those of this rank.
    pub(crate) fn stage_index(&self, number: usize) -> Option<usize> {
        self.stages.iter().position(|stage| stage.number == number)
    }

    /// Adds the gradients of weights that the first and last stage share, in
    /// the same order on both.
    fn add_tied_gradients(&self, all: &mut [StageGradients]) -> Result<(), TrainError> {
        let Some(Tied { name, first, last }) = self.tied() else { return Ok(()) };
        for gradients in all.iter_mut() {
            if let Some(gradient) = gradients.get_mut(&name) {
                // Add in the dtype of the weights.
                *gradient = gradient.cast(DType::F32)?;
            }
        }
        let rank = self.gangs.pp.rank();
        if first == last {
            let places = (self.stage_index(0), self.stage_index(self.stage_count - 1));
            let (Some(begin), Some(end)) = places else { return Ok(()) };
            let pair = (all[begin].get(&name), all[end].get(&name));
            let (Some(gradient), Some(more)) = pair else { return Ok(()) };
            let mut sum = gradient.to_local().clone();
            sum.add_assign(more.to_local())?;
            let sum = DTensor::from_local(&self.dist, sum, gradient.layout(), gradient.shape())?;
            all[begin].insert(name.clone(), sum.clone());
            all[end].insert(name, sum);
            return Ok(());
        }
        let (number, peer) = match rank {
            _ if rank == first => (0, last),
            _ if rank == last => (self.stage_count - 1, first),
            _ => return Ok(()),
        };
        let place = self.stage_index(number);
        let Some(gradient) = place.and_then(|place| all[place].get_mut(&name)) else { return Ok(()) };
        let local = gradient.to_local();
        let sent = local
            .read_host(|bytes| self.gangs.pp.send(Elements::from_bytes(local.dtype(), bytes)?, peer, TIED))?;
        sent?;
        let other = self.receive_local(local.dtype(), local.shape(), peer, TIED)?;
        let (mut sum, more) = if number == 0 { (local.clone(), other) } else { (other, local.clone()) };
        sum.add_assign(&more)?;
        *gradient = DTensor::from_local(&self.dist, sum, gradient.layout(), gradient.shape())?;
        Ok(())
    }

    /// Receives a local tensor from another pipeline rank.
    pub(crate) fn receive_local(
        &self,
        dtype: DType,
        shape: &Shape,
        from: usize,
        tag: u32,
    ) -> Result<Tensor, TrainError> {
        let received = Tensor::from_host(dtype, shape, |into| {
            ElementsMut::from_bytes(dtype, into)
                .and_then(|into| self.gangs.pp.receive(self.gangs.pp.ticket(from, tag)?, into))
                .map_err(|error| TensorError::from_function("receive", error))
        });
        let received = received.map_err(|error| match error.function_source::<GangError>() {
            Some(error) => TrainError::from(error.clone()),
            None => error.into(),
        })?;
        Ok(received.to(self.dist.device())?)
    }

    /// The norm of all gradients, counting each parameter once.
    fn norm(&self, all: &[StageGradients]) -> Result<f64, TrainError> {
        let tied = self.tied();
        let mut squares = 0.0;
        for (stage, gradients) in self.stages.iter().zip(all) {
            let again = tied.as_ref().filter(|_| stage.number + 1 == self.stage_count);
            let counted: Vec<&DTensor> = gradients
                .iter()
                .filter(|(name, _)| again.is_none_or(|tied| **name != tied.name))
                .map(|(_, gradient)| gradient)
                .collect();
            if !counted.is_empty() {
                squares += global_norm(&counted)?.powi(2);
            }
        }
        let mut total = [squares];
        self.gangs.pp.all_reduce(&mut total, ReduceOp::Sum)?;
        Ok(total[0].sqrt())
    }
}
