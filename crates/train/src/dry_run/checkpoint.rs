//! Size of a checkpoint, and what each rank writes.
//!
//! The save planner runs as a rank that holds nothing: the layouts determine
//! what every rank holds. Stages of the same kind are planned once.

use std::collections::BTreeMap;

use weightloom_checkpoint::formats::peft::PREFIX;
use weightloom_checkpoint::plan::{PlanContext, SavePlanner, StandardSavePlanner};
use weightloom_checkpoint::{Bytes, FileLayout, LocalTensor, SaveOptions, Sharding, State, TensorSpec};
use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Shape};

use super::DryRunError;
use super::context::RunContext;
use super::report::CheckpointReport;
use super::stage::DryStage;
use crate::checkpointing::{state_name, state_spec, trained_name};
use crate::optimizer::EvaluatedWeights;

/// Names and shapes of the tensors in a checkpoint.
#[derive(Default)]
struct Contents {
    model: BTreeMap<String, (DType, Shape)>,
    training: BTreeMap<String, (DType, Shape)>,
}

impl Contents {
    fn bytes(of: &BTreeMap<String, (DType, Shape)>) -> u64 {
        of.values().map(|(dtype, shape)| shape.volume() as u64 * dtype.size() as u64).sum()
    }

    fn files(stem: &str, of: &BTreeMap<String, (DType, Shape)>, ranks: usize) -> usize {
        let tensors = of.iter().map(|(name, (dtype, shape))| (name.as_str(), *dtype, shape));
        let most = SaveOptions::default().file_size(Self::bytes(of), ranks);
        FileLayout::of_tensors(stem, tensors, most).files.len()
    }
}

/// The costs of a checkpoint. Stages with equal `kinds` have equal costs.
pub(super) fn report(context: &RunContext<'_>, kinds: &[usize]) -> Result<CheckpointReport, DryRunError> {
    let mut contents = Contents::default();
    let mut loads: BTreeMap<usize, (Vec<u64>, u64)> = BTreeMap::new();
    let mut written = vec![0u64; context.world];
    let (per_place, mut items) = (context.world / context.pp, 0);
    for (number, kind) in kinds.iter().enumerate() {
        let state = state(context, number, &mut contents)?;
        let load = match loads.get(kind) {
            Some(load) => load,
            None => {
                let load = load(context, number, &state)?;
                loads.entry(*kind).or_insert(load)
            }
        };
        items += load.1;
        let first = context.first_rank(context.schedule.rank_of(number));
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
        files: Contents::files("model", &contents.model, context.world)
            + Contents::files("training", &contents.training, context.world),
        items,
        most_of_a_rank: written.iter().copied().max().unwrap_or(0),
        mean_of_ranks: total as f64 / context.world as f64,
    })
}

/// The tensors that a stage saves.
fn state(
    context: &RunContext<'_>,
    number: usize,
    contents: &mut Contents,
) -> Result<State<'static>, DryRunError> {
    let stage = DryStage::new(context, number)?;
    let is_duplicate = |name: &str| number > 0 && context.definition.tied_parameter() == Some(name);
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
        None => stage.model.parameters().iter().map(|(name, value)| (name.clone(), value)).collect(),
    };
    let is_averaged = context.optimizer.evaluated() == EvaluatedWeights::Averaged;
    let mut states = stage.states.iter();
    // Weights that two stages share are saved by the first.
    for (name, value) in model {
        let kept = if value.tracks_gradient() { states.next() } else { None };
        if is_duplicate(&name) {
            continue;
        }
        for kept in kept.iter().flat_map(|states| &states.kept) {
            let (name, spec) = (state_name(kept, &name), state_spec(kept));
            contents.training.insert(name.clone(), (spec.dtype, spec.shape.clone()));
            state.training(name, LocalTensor { spec, bytes: Bytes::Borrowed(&[]) });
        }
        if kept.is_some() && is_averaged {
            let name = trained_name(&name);
            state.training(name.clone(), tensor(value));
            contents.training.insert(name, (value.dtype(), value.shape().clone()));
        }
        let name = if stage.adapter.is_some() { format!("{PREFIX}{name}") } else { name };
        state.model(name.clone(), tensor(value));
        contents.model.insert(name, (value.dtype(), value.shape().clone()));
    }
    Ok(state)
}

/// Bytes that each rank of a stage writes, and the number of write items.
fn load(context: &RunContext<'_>, number: usize, state: &State<'_>) -> Result<(Vec<u64>, u64), DryRunError> {
    let mut planner = StandardSavePlanner::new();
    // A rank past the last one holds nothing.
    planner.configure(state, PlanContext { rank: context.world, world: context.world })?;
    let (load, items) = planner.derived_load()?;
    let first = context.first_rank(context.schedule.rank_of(number));
    let per_place = context.world / context.pp;
    Ok((load.by_rank()[first..first + per_place].to_vec(), items as u64))
}
