//! The training engine of one rank: its pipeline stages, gradients and optimizer
//! step.
//!
//! Gradients accumulate in the parameters over the micro-batches of a step.
//! Losses are divided by the number of targets in the global batch, so loss and
//! gradients do not depend on how the batch is split into micro-batches and over
//! ranks.

mod layer_norms;
mod microbatch;
mod nan_check;
mod pipelined_generation;
mod step;

use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_checkpoint::KeyMap;
use weightloom_dtensor::{DTensor, DistContext, Role};
use weightloom_gang::{GangExt, Gangs};
use weightloom_layout::{DType, ReduceOp};
use weightloom_nn::{ActivationCheckpointing, Adapter, Dropout, Model};
use weightloom_tensor::Tensor;

use crate::error::TrainError;
use crate::loss::{LossArgs, SelectedLoss};
use crate::optimizer::{Optimizer, Patterns, WeightDecay, initial_states};
use crate::pipeline::{Action, Schedule};

pub use layer_norms::{LayerNorms, NormsByLayer};
pub use microbatch::MicroBatch;
pub use pipelined_generation::SampleRequest;
pub(crate) use step::Tied;
pub use step::{ClipNorm, StepHooks, StepResult, StepSettings, StepVerdict};

/// One pipeline stage on this rank.
pub struct StageModel {
    /// The number of the stage in the whole pipeline.
    pub number: usize,
    /// The layers of the stage.
    pub model: Box<dyn Model>,
    /// The adapter that is trained instead of the layers.
    pub adapter: Option<Adapter>,
    /// Optimizer states by parameter.
    pub(crate) states: BTreeMap<String, Vec<Tensor>>,
    /// Weight decay by parameter.
    decays: BTreeMap<String, f64>,
}

/// The training engine of one rank.
pub struct Engine {
    pub(crate) gangs: Gangs,
    pub(crate) dist: Arc<DistContext>,
    pub(crate) stages: Vec<StageModel>,
    /// Number of stages in the whole pipeline.
    pub(crate) stage_count: usize,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) optimizer: Box<dyn Optimizer>,
    checkpointing: ActivationCheckpointing,
    dropout: f64,
    loss: SelectedLoss,
    /// From the names of the decoder's parameters to those in checkpoints.
    pub(crate) published_keys: KeyMap,
}

/// The parts of an engine other than its stages.
#[allow(missing_docs)]
pub struct EngineSettings<'a> {
    pub gangs: Gangs,
    /// The dist as distributed tensors see them.
    pub dist: Arc<DistContext>,
    pub schedule: Arc<Schedule>,
    pub optimizer: Box<dyn Optimizer>,
    pub decay: &'a WeightDecay,
    pub frozen: &'a Patterns,
    /// Activation checkpointing.
    pub checkpointing: ActivationCheckpointing,
    /// Dropout probability of an adapter's inputs.
    pub dropout: f64,
}

impl Engine {
    /// Builds an engine from numbered stages. Called by every rank.
    pub fn new(
        settings: EngineSettings<'_>,
        stages: Vec<(usize, Box<dyn Model>, Option<Adapter>)>,
    ) -> Result<Self, TrainError> {
        let EngineSettings { gangs, dist, schedule, optimizer, decay, frozen, checkpointing, dropout } =
            settings;
        let mut made = Vec::with_capacity(stages.len());
        for (number, mut model, mut adapter) in stages {
            let roles: Vec<Role> = model
                .parameters()
                .iter()
                .map(|(name, _)| match adapter.is_some() || frozen.matches(name) || model.is_buffer(name) {
                    true => Role::Frozen,
                    false => Role::Trained,
                })
                .collect();
            for ((_, value), role) in model.parameters_mut().iter_mut().zip(roles) {
                *value = value.parameter(role);
            }
            for (_, value) in adapter.iter_mut().flat_map(Adapter::matrices_mut) {
                *value = value.parameter(Role::Trained);
            }
            let mut stage =
                StageModel { number, model, adapter, states: BTreeMap::new(), decays: BTreeMap::new() };
            let (mut states, mut decays) = (BTreeMap::new(), BTreeMap::new());
            for (name, value) in stage.trained() {
                states.insert(name.clone(), initial_states(&*optimizer, value.to_local())?);
                let share = decay.of(&name, value.shape().ndim());
                decays.insert(name, share);
            }
            (stage.states, stage.decays) = (states, decays);
            made.push(stage);
        }
        let stage_count = schedule.stages;
        if let Some(stage) = made.first() {
            dist.overlap(stage.model.plan().mesh())?;
        }
        Ok(Self {
            gangs,
            dist,
            stages: made,
            stage_count,
            schedule,
            optimizer,
            checkpointing,
            dropout,
            loss: SelectedLoss::default(),
            published_keys: KeyMap::default(),
        })
    }

    /// Trains with another loss than the model's own.
    pub fn set_loss(&mut self, loss: SelectedLoss) {
        self.loss = loss;
    }

    /// The loss of the result of the last stage.
    fn stage_loss(
        &self,
        stage: &StageModel,
        hidden: &DTensor,
        targets: &DTensor,
        divisor: f64,
    ) -> Result<DTensor, TrainError> {
        let args = LossArgs { model: &*stage.model, hidden, targets, divisor, adapter: stage.change() };
        Ok(self.loss.compute(&args)?)
    }

    /// This rank's stages.
    pub fn stages(&self) -> &[StageModel] {
        &self.stages
    }

    /// The number of trained parameters over all stages. Called by every rank.
    pub fn trainable_parameters(&self) -> Result<u64, TrainError> {
        let of_stage = |stage: &StageModel| -> u64 {
            let own = stage.trained().into_iter().filter(|(name, _)| !self.is_duplicate(stage, name));
            own.map(|(_, value)| value.shape().volume() as u64).sum()
        };
        let mut total = [self.stages.iter().map(of_stage).sum()];
        self.gangs.pp.all_reduce(&mut total, ReduceOp::Sum)?;
        Ok(total[0])
    }

    /// This rank's program for a step.
    fn program(&self) -> &[Action] {
        &self.schedule.ranks[self.gangs.pp.rank()]
    }

    fn stage(&self, number: usize) -> Result<&StageModel, TrainError> {
        let found = self.stages.iter().find(|stage| stage.number == number);
        found.ok_or(TrainError::NoStage { number, rank: self.gangs.root.rank() })
    }

    /// The dtype of activations between stages.
    fn compute_dtype(&self) -> DType {
        let stage = self.stages.first();
        let usage = stage.and_then(|stage| stage.model.plan().usage().dtype);
        let held = stage.and_then(|stage| stage.model.parameters().first()).map(|(_, value)| value.dtype());
        usage.or(held).unwrap_or(DType::F32)
    }

    fn dropout(&self, step: u64, micro: usize) -> Option<Dropout> {
        let seed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(micro as u64);
        (self.dropout > 0.0).then_some(Dropout { probability: self.dropout, seed })
    }
}

impl StageModel {
    /// The trained parameters by name.
    pub fn trained(&self) -> Vec<(String, &DTensor)> {
        match &self.adapter {
            Some(adapter) => adapter.matrices(),
            None => self
                .model
                .parameters()
                .iter()
                .filter(|(_, value)| value.tracks_gradient())
                .map(|(name, value)| (name.clone(), value))
                .collect(),
        }
    }

    /// The trained parameters by name, mutable.
    pub(crate) fn trained_mut(&mut self) -> Vec<(String, &mut DTensor)> {
        match &mut self.adapter {
            Some(adapter) => adapter.matrices_mut(),
            None => self
                .model
                .parameters_mut()
                .iter_mut()
                .filter(|(_, value)| value.tracks_gradient())
                .map(|(name, value)| (name.clone(), value))
                .collect(),
        }
    }

    fn change(&self) -> Option<(&Adapter, f64)> {
        self.adapter.as_ref().map(|adapter| (adapter, 1.0))
    }
}
