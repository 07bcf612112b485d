//! Checks of a rank's save plan against the metadata and the state, before
//! anything is written.
//!
//! That the plans of all ranks together write every element exactly once shows
//! when they have been written, from the runs themselves.

use rustc_hash::FxHashSet;
use weightloom_layout::{DType, Shape};

use super::calls::PlannerCalls;
use super::items::{Metadata, SavePlan, WriteData, WriteItem};
use super::planner_error::PlannerProblem;
use super::save::SavePlanner;
use crate::error::CheckpointError;
use crate::state::State;

/// Refuses a plan that contradicts the metadata, and metadata that lack an
/// entry of the state.
pub(super) fn check_save_plan(
    calls: &PlannerCalls,
    planner: &dyn SavePlanner,
    state: &State<'_>,
    (plan, metadata): (&SavePlan, &Metadata),
) -> Result<(), CheckpointError> {
    let mut seen = FxHashSet::default();
    for item in &plan.items {
        check_item(item, metadata).map_err(|problem| calls.error(problem))?;
        let is_empty = matches!(&item.data, WriteData::Tensor { region, .. } if region.is_empty());
        if !is_empty && !seen.insert((&item.index.name, &item.index.offset)) {
            return Err(calls.error(PlannerProblem::Repeated { name: item.index.name.clone() }));
        }
    }
    let described = |name: &str| metadata.tensors.contains_key(name) || metadata.bytes.contains_key(name);
    let dropped = calls.ask("saved_name", || {
        let is_dropped = |name: &&String| planner.saved_name(name).is_some_and(|saved| !described(&saved));
        state.leaves().keys().filter(is_dropped).cloned().collect::<Vec<String>>()
    })?;
    match dropped.is_empty() {
        true => Ok(()),
        false => Err(calls.error(PlannerProblem::Dropped { names: dropped })),
    }
}

fn check_item(item: &WriteItem, metadata: &Metadata) -> Result<(), PlannerProblem> {
    let name = || item.index.name.clone();
    let absent = || PlannerProblem::NotInMetadata { name: name() };
    match &item.data {
        WriteData::Bytes { length, .. } => {
            let described = *metadata.bytes.get(&item.index.name).ok_or_else(absent)?;
            if *length != described {
                let (planned, described) = (format!("{length} bytes"), format!("{described} bytes"));
                return Err(PlannerProblem::Mismatch { name: name(), planned, described });
            }
        }
        WriteData::Tensor { dtype, shape, region } => {
            let described = metadata.tensors.get(&item.index.name).ok_or_else(absent)?;
            if (*dtype, shape) != (described.dtype, &described.shape) {
                let planned = tensor_text(*dtype, shape);
                let described = tensor_text(described.dtype, &described.shape);
                return Err(PlannerProblem::Mismatch { name: name(), planned, described });
            }
            region
                .check_inside(shape)
                .map_err(|problem| PlannerProblem::Outside { name: name(), problem })?;
            if item.index.offset.as_deref() != Some(region.start()) {
                let (offset, region) = (item.index.offset.clone().unwrap_or_default(), region.clone());
                return Err(PlannerProblem::Offset { name: name(), offset, region });
            }
        }
    }
    Ok(())
}

fn tensor_text(dtype: DType, shape: &Shape) -> String {
    format!("{dtype} of shape {shape}")
}
