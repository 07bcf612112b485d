//! The training engine of one rank: its pipeline stages, gradients and optimizer
//! step.
//!
//! Gradients accumulate in the parameters over the micro-batches of a step.
//! Losses are divided by the number of targets in the global batch, so loss and
//! gradients do not depend on how the batch is split into micro-batches and over
//! ranks.

mod evaluated;
mod layer_norms;
mod loss;
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

use crate::error::TrainError;
use crate::loss::{LossNeeds, SelectedLoss};
use crate::optimizer::{LearningRateScale, Optimizer, ParameterStates, Patterns, WeightDecay};
use crate::pipeline::{Action, Schedule};

pub use layer_norms::{LayerNorms, NormsByLayer};
pub(crate) use loss::EvalTotals;
use loss::LossState;
pub use microbatch::{MicroBatch, PreferenceRows};
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
    pub(crate) states: BTreeMap<String, ParameterStates>,
    /// Weight decay by parameter.
    decays: BTreeMap<String, f64>,
    /// Factors of the learning rate by parameter; 1 where there is none.
    rates: BTreeMap<String, f64>,
}

/// What a loss is computed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossPurpose {
    Training,
    Evaluation,
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
    loss_needs: LossNeeds,
    loss_state: LossState,
    /// The model that the loss imitates.
    teacher: Option<Box<dyn Model>>,
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
            let (states, decays, rates) = Default::default();
            let mut stage = StageModel { number, model, adapter, states, decays, rates };
            let (mut states, mut decays) = (BTreeMap::new(), BTreeMap::new());
            for (name, value) in stage.trained() {
                states.insert(name.clone(), ParameterStates::new(&*optimizer, &name, value)?);
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
            loss_needs: LossNeeds::default(),
            loss_state: LossState::default(),
            teacher: None,
            published_keys: KeyMap::default(),
        })
    }

    /// Trains some parameters with another learning rate.
    pub fn set_lr_scale(&mut self, scale: &LearningRateScale) {
        for stage in &mut self.stages {
            stage.rates = stage.states.keys().map(|name| (name.clone(), scale.of(name))).collect();
        }
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
