//! Saving and restoring the state of a run.
//!
//! Tensors are saved by name, each rank its shard, so a run can resume on any
//! number of ranks. Weights that two pipeline stages share are saved by the
//! first. The model has the names and layouts of published ones, so that other
//! programs load it; the rest has the decoder's names.

mod planners;
mod published;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weightloom_checkpoint::formats::peft::PREFIX;
use weightloom_checkpoint::plan::{
    LoadPlannerFactory, LoadState, MissingKeys, StandardPlanners, UnexpectedKeys,
};
use weightloom_checkpoint::{
    Bytes, DeviceBytes, DeviceReadError, KeyMap, LoadOptions, LocalTensor, Observer, SaveFormat, SaveOptions,
    Saver, Sharding, Source, State, Target, TensorSpec, load_groups, load_planned,
};
use weightloom_dtensor::DTensor;
use weightloom_gang::{Elements, GangExt};
use weightloom_layout::{Layout, ReduceOp, Shape};
use weightloom_tensor::{Device, HostMemory, Tensor};

use crate::engine::{Engine, StageModel, Tied};
use crate::error::TrainError;
use crate::guard::GuardState;
use crate::optimizer::{ParameterStates, StateTensor};
use published::publish;

pub use planners::{LoadPlanners, PlannerKind, SavePlanners};

/// The name of the progress in a checkpoint.
const PROGRESS: &str = "trainer";

/// The tag of loaded states that stages with tied weights exchange.
const LOADED: u32 = 0x3000_0002;

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Tokens processed.
    pub tokens: u64,
    /// Targets that contributed to the loss.
    pub targets: u64,
    /// State of the data loader.
    pub data: serde_json::Value,
    /// The lowest evaluation loss.
    pub best: Option<f64>,
    /// Name of the optimizer.
    pub optimizer: String,
    /// What is needed to judge the next steps.
    #[serde(default)]
    pub guard: GuardState,
    /// The resolved config of the run that saved it.
    #[serde(default)]
    pub config: serde_json::Value,
}

/// The bytes of a contiguous tensor.
struct HeldTensor(Tensor);

impl AsRef<[u8]> for HeldTensor {
    fn as_ref(&self) -> &[u8] {
        self.0.host_bytes().unwrap_or_default()
    }
}

/// A contiguous tensor on a device.
struct DeviceTensor(Tensor);

impl DeviceBytes for DeviceTensor {
    fn len(&self) -> usize {
        self.0.shape().volume() * self.0.dtype().size()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceReadError> {
        self.0.read_bytes(offset, into).map_err(|error| DeviceReadError { message: error.to_string() })
    }
}

/// Bytes in host memory on their way to a GPU, unless one tensor has more.
const STAGING: u64 = 1 << 30;

/// The most memory for copies of a background save: those of tensors on a GPU. Ranks
/// share out half of the free memory; some may be on other machines, but none says so.
fn save_budget(ranks: usize) -> u64 {
    let memory = weightloom_machine::memory();
    memory.map_or(SaveOptions::default().budget, |memory| memory.available / 2 / ranks as u64)
}

/// The shard of a tensor that this rank holds.
fn spec(value: &DTensor) -> TensorSpec {
    TensorSpec {
        dtype: value.dtype(),
        shape: value.shape().clone(),
        sharding: Sharding::Layout(value.layout()),
    }
}

/// The bytes of a tensor to save.
fn bytes(tensor: &Tensor) -> Result<Bytes<'static>, TrainError> {
    Ok(match (tensor.is_contiguous(), tensor.device()) {
        // The optimizer does not write to shared memory.
        (true, Device::Cpu) => Bytes::Shared(Arc::new(HeldTensor(tensor.detach()))),
        (true, _) => Bytes::Device(Arc::new(DeviceTensor(tensor.detach()))),
        (false, _) => Bytes::Owned(tensor.read_host(<[u8]>::to_vec)?),
    })
}

/// Reads the progress in a checkpoint.
pub(crate) fn read_progress(source: &Source) -> Result<Progress, TrainError> {
    let wrong = |message: String| TrainError::Progress { location: source.storage.location(), message };
    let bytes = source.read_bytes(PROGRESS)?.ok_or_else(|| wrong(format!("no `{PROGRESS}` entry")))?;
    serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

impl Engine {
    /// Whether a stage shares a parameter that the first stage saves.
    pub(crate) fn is_duplicate(&self, stage: &StageModel, name: &str) -> bool {
        stage.number > 0 && stage.model.definition().tied_parameter() == Some(name)
    }

    /// Saves the model under other names: `keys` maps those of the model's
    /// parameters to published ones. By default they stay as they are.
    pub fn set_published_keys(&mut self, keys: KeyMap) {
        self.published_keys = keys;
    }

    /// The parameters of a stage that this rank saves, under the model's names.
    fn own_parameters(&self, stage: &StageModel) -> BTreeMap<String, DTensor> {
        let own = stage.model.parameters().iter().filter(|(name, _)| !self.is_duplicate(stage, name));
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// The specs of all tensors that this rank saves, under the model's names.
    fn local_specs(&self) -> Vec<TensorSpec> {
        let mut all: Vec<TensorSpec> = Vec::new();
        for stage in &self.stages {
            match &stage.adapter {
                Some(_) => all.extend(stage.trained().iter().map(|(_, value)| spec(value))),
                // An average has the spec of the parameter.
                None => all.extend(self.own_parameters(stage).values().map(spec)),
            }
            all.extend(self.training_tensors(stage).into_iter().map(|(_, spec, _)| spec));
        }
        all
    }

    /// The model's tensors that this rank saves. Called by every rank.
    fn model_tensors(&self, stage: &StageModel) -> Result<Vec<(String, DTensor)>, TrainError> {
        match &stage.adapter {
            Some(_) => {
                let named = |(name, value): (String, &DTensor)| {
                    Ok((format!("{PREFIX}{name}"), self.saved_weights(stage, &name, value)?))
                };
                stage.trained().into_iter().map(named).collect()
            }
            None => {
                let mut own = self.own_parameters(stage);
                for (name, value) in &mut own {
                    *value = self.saved_weights(stage, name, value)?;
                }
                Ok(publish(&self.published_keys, own)?.into_iter().collect())
            }
        }
    }

    /// The weights that are saved as the model: those that are evaluated.
    fn saved_weights(&self, stage: &StageModel, name: &str, value: &DTensor) -> Result<DTensor, TrainError> {
        Ok(self.average(stage, name, value)?.unwrap_or_else(|| value.clone()))
    }

    /// The names, specs and tensors that this rank saves for resuming: states of the
    /// optimizer, and the trained weights if others are saved as the model.
    fn training_tensors<'a>(&'a self, stage: &'a StageModel) -> Vec<(String, TensorSpec, &'a Tensor)> {
        let mut all = Vec::new();
        for (name, value) in stage.trained() {
            if self.is_duplicate(stage, &name) {
                continue;
            }
            for (state, tensor) in stage.states.get(&name).into_iter().flat_map(ParameterStates::iter) {
                all.push((state_name(state, &name), state_spec(state), tensor));
            }
            if self.evaluates_average() {
                all.push((trained_name(&name), spec(value), value.to_local()));
            }
        }
        all
    }

    /// Bytes of all tensors of a checkpoint. Called by every rank.
    pub(crate) fn checkpoint_bytes(&self) -> Result<u64, TrainError> {
        let own = self
            .local_specs()
            .into_iter()
            .map(|spec| (spec.shape.volume() as u64).saturating_mul(spec.dtype.size() as u64));
        let mut bytes = [own.fold(0, u64::saturating_add)];
        // Each stage has its own tensors.
        self.gangs.pp.all_reduce(&mut bytes, ReduceOp::Sum)?;
        Ok(bytes[0])
    }

    /// Saves this rank's part of a checkpoint. Called by every rank. Returns how
    /// long the caller was blocked: in the background, only while planning.
    /// Until the save is complete, steps write new weights next to the old ones,
    /// which are freed once written.
    pub fn save(
        &self,
        saver: &mut Saver,
        target: &Target,
        progress: &Progress,
        assets: BTreeMap<String, Vec<u8>>,
        mode: SaveMode,
    ) -> Result<Duration, TrainError> {
        let mut state = State::new();
        for stage in &self.stages {
            for (name, value) in self.model_tensors(stage)? {
                state.model(name, LocalTensor { spec: spec(&value), bytes: bytes(value.to_local())? });
            }
            for (name, spec, tensor) in self.training_tensors(stage) {
                state.training(name, LocalTensor { spec, bytes: bytes(tensor)? });
            }
        }
        let progress_error = |error: weightloom_checkpoint::SerializeError| TrainError::Progress {
            location: "the run".to_owned(),
            message: error.to_string(),
        };
        state.value(PROGRESS, progress).map_err(progress_error)?;
        let options = SaveOptions {
            format: SaveFormat::Native,
            assets,
            step: Some(progress.step),
            budget: save_budget(self.gangs.root.size()),
            ..SaveOptions::default()
        };
        match mode {
            SaveMode::Background(observer) => Ok(saver.save_async(&state, target, &options, observer)?),
            SaveMode::Blocking(observer) => Ok(saver.save(&state, target, &options, observer)?.stall),
        }
    }

    /// Restores optimizer states and adapter matrices from a checkpoint, which may
    /// come from another mesh, and returns its progress. Trained weights of the
    /// model are loaded with the model. After an error, some may be restored and others
    /// not. Called by every rank.
    pub fn resume(&mut self, source: &Source, observer: &dyn Observer) -> Result<Progress, TrainError> {
        self.resume_with(source, &StandardPlanners, observer)
    }

    /// Like [`resume`](Self::resume), with the planner of a factory.
    pub fn resume_with(
        &mut self,
        source: &Source,
        planner: &dyn LoadPlannerFactory,
        observer: &dyn Observer,
    ) -> Result<Progress, TrainError> {
        let progress = read_progress(source)?;
        if progress.optimizer != self.optimizer.name() {
            let (found, selected) = (progress.optimizer, self.optimizer.name());
            return Err(TrainError::OtherOptimizer { location: source.storage.location(), found, selected });
        }
        let wanted = self.restored_tensors();
        // All at once into host memory; for a GPU, as many as the staging memory holds.
        let budget = if self.dist.device() == Device::Cpu { u64::MAX } else { STAGING };
        let mut sizes = Vec::with_capacity(wanted.len());
        for RestoredTensor { spec, layout, .. } in &wanted {
            // The first rank of a mesh has the largest shard.
            let first = layout.mesh().ranks().next().unwrap_or(0);
            let largest = layout.local_shape(&spec.shape, first).map_err(weightloom_nn::NnError::from)?;
            sizes.push((largest.volume() * spec.dtype.size()) as u64);
        }
        for group in load_groups(sizes, budget, &*self.gangs.root)? {
            self.restore(source, &wanted[group], planner, observer)?;
        }
        self.share_tied_states()?;
        Ok(progress)
    }

    /// The tensors of this rank that a resume reads.
    fn restored_tensors(&self) -> Vec<RestoredTensor> {
        let mut all = Vec::new();
        for (stage, of_stage) in self.stages.iter().enumerate() {
            for (parameter, value) in of_stage.trained() {
                if self.is_duplicate(of_stage, &parameter) {
                    continue;
                }
                // Weights of a model that are saved as such are loaded with it.
                let (is_adapter, is_averaged) = (of_stage.adapter.is_some(), self.evaluates_average());
                let weights = (is_adapter || is_averaged).then(|| RestoredTensor {
                    stage,
                    parameter: parameter.clone(),
                    name: match is_averaged {
                        true => trained_name(&parameter),
                        false => format!("{PREFIX}{parameter}"),
                    },
                    state: None,
                    spec: spec(value),
                    layout: value.layout(),
                    local: value.to_local().shape().clone(),
                });
                all.extend(weights);
                let states = of_stage.states.get(&parameter).into_iter().flat_map(ParameterStates::iter);
                all.extend(states.enumerate().map(|(number, (state, tensor))| RestoredTensor {
                    stage,
                    parameter: parameter.clone(),
                    name: state_name(state, &parameter),
                    state: Some(number),
                    spec: state_spec(state),
                    layout: state.layout,
                    local: tensor.shape().clone(),
                }));
            }
        }
        all
    }

    /// Reads tensors and takes them over. Called by every rank.
    fn restore(
        &mut self,
        source: &Source,
        wanted: &[RestoredTensor],
        planner: &dyn LoadPlannerFactory,
        observer: &dyn Observer,
    ) -> Result<(), TrainError> {
        let mut memories = Vec::with_capacity(wanted.len());
        for tensor in wanted {
            memories.push(HostMemory::new(tensor.spec.dtype, &tensor.local)?);
        }
        let mut state = LoadState::new();
        for (tensor, memory) in wanted.iter().zip(&mut memories) {
            state.tensor(tensor.name.clone(), tensor.spec.clone(), memory.bytes_mut());
        }
        let options = LoadOptions {
            missing: MissingKeys::Error,
            unexpected: UnexpectedKeys::Ignore,
            ..LoadOptions::default()
        };
        load_planned(source, state, planner, &*self.gangs.root, &options, observer)?;
        for (RestoredTensor { stage, parameter, state, .. }, memory) in wanted.iter().zip(memories) {
            let stage = &mut self.stages[*stage];
            let loaded = memory.into_tensor();
            match state {
                None => {
                    stage.set_weights(parameter, Some(loaded.to(self.dist.device())?))?;
                }
                Some(state) => {
                    let Some(states) = stage.states.get_mut(parameter) else { continue };
                    let device = states.kept.get(*state).map(|kept| kept.device);
                    if let (Some(held), Some(device)) = (states.tensors.get_mut(*state), device) {
                        *held = loaded.to(device)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies loaded states of tied weights from the first to the last stage, and the
    /// weights themselves if others are saved as the model.
    fn share_tied_states(&mut self) -> Result<(), TrainError> {
        let Some(Tied { name, first, last }) = self.tied() else { return Ok(()) };
        let rank = self.gangs.pp.rank();
        let with_weights = self.evaluates_average();
        match (self.stage_index(0), self.stage_index(self.stage_count - 1)) {
            // Both stages are on this rank.
            (Some(begin), Some(end)) => {
                if let Some(states) = self.stages[begin].states.get(&name).cloned() {
                    self.stages[end].states.insert(name.clone(), states);
                }
                let weights = self.stages[begin].local_weights(&name).filter(|_| with_weights).cloned();
                self.stages[end].set_weights(&name, weights)?;
            }
            (Some(place), _) if rank == first => {
                let stage = &self.stages[place];
                let states = stage.states.get(&name).into_iter().flat_map(|states| &states.tensors);
                for tensor in states.chain(stage.local_weights(&name).filter(|_| with_weights)) {
                    let sent = tensor.read_host(|bytes| {
                        self.gangs.pp.send(Elements::from_bytes(tensor.dtype(), bytes)?, last, LOADED)
                    })?;
                    sent?;
                }
            }
            (_, Some(place)) if rank == last => {
                let stage = &self.stages[place];
                let Some(mut states) = stage.states.get(&name).cloned() else { return Ok(()) };
                for (held, kept) in states.tensors.iter_mut().zip(&states.kept) {
                    *held = self.receive_local(held.dtype(), held.shape(), first, LOADED)?.to(kept.device)?;
                }
                let like = stage.local_weights(&name).filter(|_| with_weights);
                let receive = |like: &Tensor| self.receive_local(like.dtype(), like.shape(), first, LOADED);
                let weights = like.map(receive).transpose()?;
                self.stages[place].states.insert(name.clone(), states);
                self.stages[place].set_weights(&name, weights)?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl StageModel {
    /// This rank's shard of a trained parameter.
    fn local_weights(&self, name: &str) -> Option<&Tensor> {
        let found = self.trained().into_iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.to_local())
    }

    /// Replaces this rank's shard of a trained parameter.
    fn set_weights(&mut self, name: &str, weights: Option<Tensor>) -> Result<(), TrainError> {
        let Some(weights) = weights else { return Ok(()) };
        for (_, value) in self.trained_mut().into_iter().filter(|(found, _)| found == name) {
            let weights = weights.detach().requires_grad();
            value.change_local(|local| {
                *local = weights;
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The name of a state of a parameter in a checkpoint.
pub(crate) fn state_name(state: &StateTensor, parameter: &str) -> String {
    format!("optimizer.{}.{parameter}", state.name)
}

/// The name of trained weights in a checkpoint whose model is an average of them.
pub(crate) fn trained_name(parameter: &str) -> String {
    format!("trained.{parameter}")
}

/// The shard of a state that this rank holds.
pub(crate) fn state_spec(state: &StateTensor) -> TensorSpec {
    TensorSpec { dtype: state.dtype, shape: state.shape.clone(), sharding: Sharding::Layout(state.layout) }
}

/// A tensor that a resume reads: a state of the optimizer, or a trained parameter that
/// is not loaded with the model.
struct RestoredTensor {
    /// The number of the stage among those of this rank.
    stage: usize,
    parameter: String,
    /// The name in the checkpoint.
    name: String,
    /// The number of the optimizer's state; `None` for the parameter itself.
    state: Option<usize>,
    spec: TensorSpec,
    layout: Layout,
    /// The shape of this rank's shard.
    local: Shape,
}

/// Whether a save blocks the caller.
pub enum SaveMode<'a> {
    /// Save in the background.
    Background(Arc<dyn Observer + Send + Sync>),
    /// Return when the checkpoint is complete.
    Blocking(&'a dyn Observer),
}
