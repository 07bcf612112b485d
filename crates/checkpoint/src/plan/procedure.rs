//! The procedure of planning a save. Every rank fails if one does.

use weightloom_gang::{Gang, GangError, GangExt};

use super::cache::PlanCache;
use super::calls::PlannerCalls;
use super::check::check_save_plan;
use super::items::{Metadata, SavePlan};
use super::planner_error::PlannerProblem;
use super::save::{PlanContext, SavePlanner};
use crate::collective_result;
use crate::error::CheckpointError;
use crate::fingerprint::Fingerprint;
use crate::manifest::digest_of;
use crate::state::State;

/// Plans a save with a planner. Every rank of the gang.
pub fn plan_save(
    planner: &mut dyn SavePlanner,
    state: &State<'_>,
    gang: &dyn Gang,
) -> Result<(SavePlan, Metadata), CheckpointError> {
    plan_cached_save(planner, state, gang, &mut PlanCache::default())
}

/// As [`plan_save`], with the plan of the last save.
pub(crate) fn plan_cached_save(
    planner: &mut dyn SavePlanner,
    state: &State<'_>,
    gang: &dyn Gang,
    cache: &mut PlanCache,
) -> Result<(SavePlan, Metadata), CheckpointError> {
    let calls = PlannerCalls::new(|| planner.name());
    let context = PlanContext { rank: gang.rank(), world: gang.size() };
    let configured = calls.run("configure", || planner.configure(state, context));
    // A rank that failed still takes part, so that all ranks learn of it.
    let digest = configured.and_then(|()| calls.ask("derivable", || planner.derivable()));
    let agreement = agree(gang, digest.as_ref().ok().copied().flatten())?;
    collective_result(gang, digest)?;
    let (plan, metadata) = match agreement {
        Agreement::Alone => collective_result(gang, calls.run("derived_plan", || planner.derived_plan()))?,
        Agreement::Gather => gathered_plan(&calls, planner, gang, cache)?,
    };
    let finalized = calls.run("finalize", || planner.finalize(plan)).and_then(|plan| {
        check_save_plan(&calls, planner, state, (&plan, &metadata))?;
        Ok(plan)
    });
    let plan = collective_result(gang, finalized)?;
    if let Agreement::Gather = agreement {
        check_same(&calls, &plan, &metadata, gang)?;
    }
    Ok((plan, metadata))
}

/// This rank's plan from the local plans of all ranks. Every rank.
fn gathered_plan(
    calls: &PlannerCalls,
    planner: &mut dyn SavePlanner,
    gang: &dyn Gang,
    cache: &mut PlanCache,
) -> Result<(SavePlan, Metadata), CheckpointError> {
    let local = calls.run("local_plan", || planner.local_plan());
    let local = local.and_then(|local| Ok((local, calls.ask("caching", || planner.caching())?)));
    let (local, caching) = collective_result(gang, local)?;
    if let Some(kept) = cache.reuse(&local, caching, gang)? {
        return Ok(kept);
    }
    cache.clear();
    let locals = gang.all_gather_objects(&local)?;
    let global =
        calls.run("global_plan", || planner.global_plan(locals)).and_then(|(mut plans, metadata)| {
            if plans.len() != gang.size() {
                let (expected, found) = (gang.size(), plans.len());
                return Err(calls.error(PlannerProblem::PlanCount { expected, found }));
            }
            Ok((plans.swap_remove(gang.rank()), metadata))
        });
    let (plan, metadata) = collective_result(gang, global)?;
    cache.keep(local, &plan, &metadata);
    Ok((plan, metadata))
}

#[derive(Clone, Copy)]
enum Agreement {
    Alone,
    Gather,
}

/// Whether all ranks have the same digest.
fn agree(gang: &dyn Gang, digest: Option<Fingerprint>) -> Result<Agreement, GangError> {
    let own = digest.map_or([0; 3], |Fingerprint(digest)| [1, digest as u64, (digest >> 64) as u64]);
    let all = all_digests(gang, own)?;
    let same = own[0] == 1 && all.chunks(3).all(|theirs| theirs == own);
    Ok(if same { Agreement::Alone } else { Agreement::Gather })
}

fn all_digests<const N: usize>(gang: &dyn Gang, own: [u64; N]) -> Result<Vec<u64>, GangError> {
    let mut all = vec![0u64; N * gang.size()];
    gang.all_gather(&own, &vec![N; gang.size()], &mut all)?;
    Ok(all)
}

/// Refuses metadata and redistributions that differ between ranks: the ranks
/// would write to different offsets, or wait for one another in vain. Every
/// rank.
fn check_same(
    calls: &PlannerCalls,
    plan: &SavePlan,
    metadata: &Metadata,
    gang: &dyn Gang,
) -> Result<(), CheckpointError> {
    // Cannot fail: all keys are text, and planner data are JSON.
    let text = serde_json::to_vec(&(metadata, &plan.redistributions)).unwrap_or_default();
    let Fingerprint(digest) = digest_of(&text);
    let all = all_digests(gang, [digest as u64, (digest >> 64) as u64])?;
    match all.chunks(2).position(|theirs| theirs != &all[..2]) {
        None => Ok(()),
        Some(rank) => Err(calls.error(PlannerProblem::Differs { rank })),
    }
}
