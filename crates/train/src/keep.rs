//! What a checkpoint holds of a run, and going on from it.
//!
//! Tensors are saved by name, each rank its part, wherever it was computed, so
//! a run goes on with any other number of ranks. A parameter that two stages
//! share is saved by the first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weightloom_checkpoint::formats::peft::PREFIX;
use weightloom_checkpoint::plan::{LoadState, MissingKeys, UnexpectedKeys};
use weightloom_checkpoint::{
    Bytes, LoadOptions, LocalTensor, Observer, SaveFormat, SaveOptions, Saver, Sharding, Source, State,
    Target, TensorSpec, load,
};
use weightloom_dtensor::DTensor;
use weightloom_gang::Elements;
use weightloom_nn::EMBEDDING;
use weightloom_tensor::{HostMemory, Tensor};

use crate::engine::{Engine, StageModel};
use crate::error::TrainError;

/// Under which name a checkpoint says how far a run was.
const PROGRESS: &str = "trainer";

/// The tag under which tied stages hand on what was loaded.
const LOADED: u32 = 0x3000_0002;

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that were done.
    pub step: u64,
    /// Tokens that were read.
    pub tokens: u64,
    /// Targets that counted.
    pub targets: u64,
    /// Where the data is.
    pub data: serde_json::Value,
    /// The lowest held-out loss so far.
    pub best: Option<f64>,
    /// The optimizer.
    pub optimizer: String,
}

/// The bytes of a tensor that lies in one piece.
struct HeldTensor(Tensor);

impl AsRef<[u8]> for HeldTensor {
    fn as_ref(&self) -> &[u8] {
        self.0.host_bytes().unwrap_or_default()
    }
}

/// Which part of a tensor this rank holds.
fn spec(value: &DTensor) -> TensorSpec {
    TensorSpec {
        dtype: value.dtype(),
        shape: value.shape().clone(),
        sharding: Sharding::Layout(value.layout()),
    }
}

/// How far a run was when it saved a checkpoint.
fn progress_of(source: &Source) -> Result<Progress, TrainError> {
    let wrong = |message: String| TrainError::Progress { location: source.storage.location(), message };
    let bytes = source.read_bytes(PROGRESS)?.ok_or_else(|| wrong(format!("it has no `{PROGRESS}`")))?;
    serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

impl Engine {
    /// Whether a stage leaves a parameter to the first one.
    fn leaves(&self, stage: &StageModel, name: &str) -> bool {
        name == EMBEDDING && stage.number > 0 && stage.decoder.config().head.tied
    }

    /// What this rank holds of a checkpoint: names, specs and tensors, of the
    /// model and of the training.
    fn holdings(&self) -> Vec<(String, TensorSpec, &Tensor, Part)> {
        let mut all = Vec::new();
        for stage in &self.stages {
            let adapter = stage.adapter.is_some();
            let trained = stage.trained();
            match adapter {
                true => {
                    for (name, value) in &trained {
                        let name = format!("{PREFIX}{name}");
                        all.push((name, spec(value), value.to_local(), Part::Model));
                    }
                }
                false => {
                    for (name, value) in stage.decoder.parameters() {
                        if !self.leaves(stage, name) {
                            all.push((name.clone(), spec(value), value.to_local(), Part::Model));
                        }
                    }
                }
            }
            for (name, value) in trained {
                if self.leaves(stage, &name) {
                    continue;
                }
                let states = stage.states.get(&name).into_iter().flatten();
                for (kept, tensor) in self.optimizer.states().iter().zip(states) {
                    all.push((format!("optimizer.{kept}.{name}"), spec(value), tensor, Part::Training));
                }
            }
        }
        all
    }

    /// Saves this rank's part of a checkpoint. Every rank. In the background,
    /// only planning holds the caller up; how long is returned. As long as it
    /// goes on, steps put new weights beside the old ones, which are freed when
    /// they are written.
    pub fn save(
        &self,
        saver: &mut Saver,
        target: &Target,
        progress: &Progress,
        assets: BTreeMap<String, Vec<u8>>,
        pace: Pace,
    ) -> Result<Duration, TrainError> {
        let mut state = State::new();
        for (name, spec, tensor, part) in self.holdings() {
            let bytes = match tensor.host_bytes() {
                // The optimizer leaves elements alone that somebody else holds.
                Some(_) => Bytes::Shared(Arc::new(HeldTensor(tensor.detach()))),
                // What does not lie as files have it is copied first.
                None => Bytes::Owned(tensor.read_host(<[u8]>::to_vec)?),
            };
            let local = LocalTensor { spec, bytes };
            match part {
                Part::Model => state.model(name, local),
                Part::Training => state.training(name, local),
            };
        }
        let about = |error: weightloom_checkpoint::SerializeError| TrainError::Progress {
            location: "the run".to_owned(),
            message: error.to_string(),
        };
        state.value(PROGRESS, progress).map_err(about)?;
        let options = SaveOptions {
            format: SaveFormat::Native,
            assets,
            step: Some(progress.step),
            ..SaveOptions::default()
        };
        match pace {
            Pace::Background(observer) => Ok(saver.save_async(&state, target, &options, observer)?),
            Pace::Waiting(observer) => Ok(saver.save(&state, target, &options, observer)?.stall),
        }
    }

    /// Goes on from a checkpoint, on any mesh: takes what the optimizer had kept,
    /// and an adapter's matrices, and returns how far the run was. Weights that
    /// are trained themselves were loaded with the model. Every rank.
    pub fn resume(&mut self, source: &Source, observer: &dyn Observer) -> Result<Progress, TrainError> {
        let progress = progress_of(source)?;
        if progress.optimizer != self.optimizer.name() {
            let (found, asked) = (progress.optimizer, self.optimizer.name());
            return Err(TrainError::OtherOptimizer { location: source.storage.location(), found, asked });
        }
        let names = self.optimizer.states();
        let mut memories: Vec<(usize, String, Option<usize>, TensorSpec, HostMemory)> = Vec::new();
        for (place, stage) in self.stages.iter().enumerate() {
            for (name, value) in stage.trained() {
                if self.leaves(stage, &name) {
                    continue;
                }
                let memory = || HostMemory::new(value.dtype(), value.to_local().shape());
                if stage.adapter.is_some() {
                    memories.push((place, name.clone(), None, spec(value), memory()?));
                }
                for state in 0..names.len() {
                    memories.push((place, name.clone(), Some(state), spec(value), memory()?));
                }
            }
        }
        let mut state = LoadState::new();
        for (_, name, kept, spec, memory) in &mut memories {
            let name = match kept {
                None => format!("{PREFIX}{name}"),
                Some(kept) => format!("optimizer.{}.{name}", names[*kept]),
            };
            state.tensor(name, spec.clone(), memory.bytes_mut());
        }
        let options = LoadOptions {
            missing: MissingKeys::Error,
            unexpected: UnexpectedKeys::Ignore,
            ..LoadOptions::default()
        };
        load(source, state, &*self.gangs.root, &options, observer)?;
        for (place, name, kept, _, memory) in memories {
            let stage = &mut self.stages[place];
            let loaded = memory.into_tensor();
            match kept {
                None => {
                    for (_, value) in stage.trained_mut().into_iter().filter(|(found, _)| *found == name) {
                        let loaded = loaded.requires_grad();
                        value.change_local(|local| {
                            *local = loaded;
                            Ok(())
                        })?;
                    }
                }
                Some(kept) => {
                    let states = stage.states.get_mut(&name);
                    if let Some(held) = states.and_then(|states| states.get_mut(kept)) {
                        *held = loaded;
                    }
                }
            }
        }
        self.hand_on_tied()?;
        Ok(progress)
    }

    /// Gives the last stage what the first one loaded for both.
    fn hand_on_tied(&mut self) -> Result<(), TrainError> {
        let Some((first, last)) = self.tied_peer() else { return Ok(()) };
        let rank = self.gangs.pp.rank();
        let (begin, end) = (self.place_of(0), self.place_of(self.stage_count - 1));
        if let (Some(begin), Some(end)) = (begin, end) {
            // Both are here.
            if let Some(states) = self.stages[begin].states.get(EMBEDDING).cloned() {
                self.stages[end].states.insert(EMBEDDING.to_owned(), states);
            }
        } else if rank == first {
            let states = begin.and_then(|place| self.stages[place].states.get(EMBEDDING));
            for tensor in states.into_iter().flatten() {
                let sent = tensor.read_host(|bytes| {
                    self.gangs.pp.send(Elements::from_bytes(tensor.dtype(), bytes)?, last, LOADED)
                })?;
                sent?;
            }
        } else if rank == last
            && let Some(place) = end
        {
            for state in 0..self.optimizer.states().len() {
                let like = self.stages[place].states.get(EMBEDDING).map(|states| states[state].clone());
                let Some(like) = like else { continue };
                let received = self.received(like.dtype(), like.shape(), first, LOADED)?;
                if let Some(states) = self.stages[place].states.get_mut(EMBEDDING) {
                    states[state] = received;
                }
            }
        }
        Ok(())
    }
}

/// Which part of a checkpoint a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Model,
    Training,
}

/// Whether the caller waits for a save.
pub enum Pace<'a> {
    /// It does not.
    Background(Arc<dyn Observer + Send + Sync>),
    /// It does.
    Waiting(&'a dyn Observer),
}
