//! What a checkpoint would take.
//!
//! The planner is asked as a rank that holds nothing would ask it: layouts tell
//! what all ranks hold. Stages of one kind are planned once; what one writes,
//! the others do too, each on its own ranks.

use std::collections::BTreeMap;

use weightloom_checkpoint::formats::peft::PREFIX;
use weightloom_checkpoint::plan::{PlanContext, SavePlanner, StandardSavePlanner};
use weightloom_checkpoint::{Bytes, FileLayout, LocalTensor, SaveOptions, Sharding, State, TensorSpec};
use weightloom_dtensor::DTensor;
use weightloom_layout::Shape;
use weightloom_nn::EMBEDDING;

use super::DryError;
use super::report::CheckpointReport;
use super::setup::{KEPT_IN, Setup};
use super::stage::DryStage;

/// Names and shapes of everything that a checkpoint holds.
#[derive(Default)]
struct Contents {
    model: BTreeMap<String, Shape>,
    training: BTreeMap<String, Shape>,
}

impl Contents {
    fn bytes(of: &BTreeMap<String, Shape>) -> u64 {
        of.values().map(|shape| shape.volume() as u64 * KEPT_IN.size() as u64).sum()
    }

    fn files(stem: &str, of: &BTreeMap<String, Shape>) -> usize {
        let tensors = of.iter().map(|(name, shape)| (name.as_str(), KEPT_IN, shape));
        FileLayout::of_tensors(stem, tensors, SaveOptions::default().shard_size).files.len()
    }
}

/// What a checkpoint of a run would take. `kinds` says which stages are alike.
pub(super) fn report(setup: &Setup<'_>, kinds: &[usize]) -> Result<CheckpointReport, DryError> {
    let mut contents = Contents::default();
    let mut loads: BTreeMap<usize, (Vec<u64>, u64)> = BTreeMap::new();
    let mut written = vec![0u64; setup.world];
    let (per_place, mut items) = (setup.world / setup.pp, 0);
    for (number, kind) in kinds.iter().enumerate() {
        let state = state(setup, number, &mut contents)?;
        let load = match loads.get(kind) {
            Some(load) => load,
            None => {
                let load = load(setup, number, &state)?;
                loads.entry(*kind).or_insert(load)
            }
        };
        items += load.1;
        let first = setup.first_rank(setup.schedule.rank_of(number));
        for (sum, bytes) in written[first..first + per_place].iter_mut().zip(&load.0) {
            *sum += bytes;
        }
    }
    let (model_bytes, training) = (Contents::bytes(&contents.model), Contents::bytes(&contents.training));
    let total: u64 = written.iter().sum();
    Ok(CheckpointReport {
        bytes: model_bytes + training,
        model_bytes,
        tensors: contents.model.len() + contents.training.len(),
        files: Contents::files("model", &contents.model) + Contents::files("training", &contents.training),
        items,
        most_of_a_rank: written.iter().copied().max().unwrap_or(0),
        mean_of_ranks: total as f64 / setup.world as f64,
    })
}

/// What a stage saves.
fn state(setup: &Setup<'_>, number: usize, contents: &mut Contents) -> Result<State<'static>, DryError> {
    let stage = DryStage::new(setup, number)?;
    let leaves = |name: &str| number > 0 && setup.decoder.head.tied && name == EMBEDDING;
    let tensor = |value: &DTensor| {
        let sharding = Sharding::Layout(value.layout());
        LocalTensor {
            spec: TensorSpec { dtype: value.dtype(), shape: value.shape().clone(), sharding },
            bytes: Bytes::Borrowed(&[]),
        }
    };
    let mut state = State::new();
    let model: Vec<(String, &DTensor)> = match &stage.adapter {
        Some(adapter) => adapter.matrices(),
        None => stage.decoder.parameters().iter().map(|(name, value)| (name.clone(), value)).collect(),
    };
    // A parameter that two stages share is saved by the first.
    for (name, value) in model.into_iter().filter(|(name, _)| !leaves(name)) {
        if value.tracks_gradient() {
            for kept in setup.optimizer.states() {
                let name = format!("optimizer.{kept}.{name}");
                state.training(name.clone(), tensor(value));
                contents.training.insert(name, value.shape().clone());
            }
        }
        let name = if stage.adapter.is_some() { format!("{PREFIX}{name}") } else { name };
        state.model(name.clone(), tensor(value));
        contents.model.insert(name, value.shape().clone());
    }
    Ok(state)
}

/// Bytes that each rank of a stage writes of it, and how many parts there are.
fn load(setup: &Setup<'_>, number: usize, state: &State<'_>) -> Result<(Vec<u64>, u64), DryError> {
    let mut planner = StandardSavePlanner::new();
    // A rank behind the last one holds nothing.
    planner.configure(state, PlanContext { rank: setup.world, world: setup.world })?;
    let (load, items) = planner.derived_load()?;
    let first = setup.first_rank(setup.schedule.rank_of(number));
    let per_place = setup.world / setup.pp;
    Ok((load.by_rank()[first..first + per_place].to_vec(), items as u64))
}
