//! Planning of a load on all ranks.

use std::collections::BTreeSet;

use weightloom_gang::{Gang, GangExt};

use super::check::{PlannedRead, check_names, check_reads, reread_tensors};
use crate::error::CheckpointError;
use crate::formats::Source;
use crate::plan::{LoadPlan, LoadPlanner, PlanContext, PlannerCalls, PlannerProblem};
use crate::{Vote, collective_result, collective_vote};

/// Whose plan it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanOrigin {
    /// The default planner's, whose reads follow from the index and need no
    /// further checks.
    Standard,
    /// A user's planner's.
    Custom,
}

/// A plan that can be carried out.
pub(super) struct CheckedPlan {
    pub(super) plan: LoadPlan,
    /// Where each item reads and writes; `None` for the default planner.
    pub(super) reads: Option<Vec<PlannedRead>>,
    /// Tensors with elements that are read more than once, whose checksums
    /// would not add up.
    pub(super) reread: BTreeSet<String>,
}

/// This rank's plan. Every rank.
pub(super) fn plan(
    source: &Source,
    planner: &mut dyn LoadPlanner<'_>,
    calls: &PlannerCalls,
    origin: PlanOrigin,
    gang: &dyn Gang,
) -> Result<CheckedPlan, CheckpointError> {
    let index = &*source.index;
    let context = PlanContext { rank: gang.rank(), world: gang.size() };
    let local = calls
        .run("configure", || planner.configure(index, context))
        .and_then(|()| calls.run("local_plan", || planner.local_plan(index)))
        .and_then(|plan| Ok((plan, calls.ask("needs_global_plan", || planner.needs_global_plan())?)));
    let vote = if matches!(local, Ok((_, true))) { Vote::Yes } else { Vote::No };
    let ((mut plan, _), vote) = collective_vote(gang, local, vote)?;
    if vote == Vote::Yes {
        let local = gang.all_gather_objects(&plan)?;
        let planned: BTreeSet<String> = local.iter().flat_map(destinations).map(str::to_owned).collect();
        let global = calls.run("global_plan", || planner.global_plan(local)).and_then(|mut plans| {
            if plans.len() != gang.size() {
                let (expected, found) = (gang.size(), plans.len());
                return Err(calls.error(PlannerProblem::PlanCount { expected, found }));
            }
            check_dropped(calls, &planned, plans.iter().flat_map(destinations))?;
            Ok(plans.swap_remove(gang.rank()))
        });
        plan = collective_result(gang, global)?;
    }
    let finalized =
        match origin {
            PlanOrigin::Standard => calls
                .run("finalize", || planner.finalize(plan))
                .map(|plan| CheckedPlan { plan, reads: None, reread: BTreeSet::new() }),
            PlanOrigin::Custom => finalize(source, planner, calls, plan),
        };
    collective_result(gang, finalized)
}

/// Finalizes and checks the plan of a user's planner.
fn finalize(
    source: &Source,
    planner: &mut dyn LoadPlanner<'_>,
    calls: &PlannerCalls,
    plan: LoadPlan,
) -> Result<CheckedPlan, CheckpointError> {
    let mut planned: BTreeSet<String> = destinations(&plan).map(str::to_owned).collect();
    let plan = calls.run("finalize", || planner.finalize(plan))?;
    planned.extend(calls.ask("destinations", || planner.destinations(&source.index))?);
    check_dropped(calls, &planned, destinations(&plan))?;
    check_names(&plan, &source.index).map_err(|problem| calls.error(problem))?;
    let reads = check_reads(&plan, &source.index).map_err(|problem| calls.error(problem))?;
    let reread = reread_tensors(&plan, &reads);
    Ok(CheckedPlan { plan, reads: Some(reads), reread })
}

/// Refuses plans that leave out what was planned before.
fn check_dropped<'n>(
    calls: &PlannerCalls,
    planned: &BTreeSet<String>,
    found: impl Iterator<Item = &'n str>,
) -> Result<(), CheckpointError> {
    let found: BTreeSet<&str> = found.collect();
    let dropped = planned.iter().filter(|name| !found.contains(name.as_str()));
    let names: Vec<String> = dropped.cloned().collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(calls.error(PlannerProblem::Dropped { names })),
    }
}

/// The names of the entries that a plan fills.
fn destinations(plan: &LoadPlan) -> impl Iterator<Item = &str> {
    let tensors = plan.tensors.iter().map(|item| item.destination.name.as_str());
    tensors.chain(plan.bytes.iter().map(|(_, wanted)| wanted.as_str()))
}
