//! Plans that are kept from one save to the next.
//!
//! A gathered plan follows from the local plans of all ranks. If none of them
//! has changed but for the contents of bytes (counters, random states), the plan
//! is the same, and only the digests of the bytes need to be gathered.

use std::collections::BTreeMap;

use weightloom_gang::{Gang, GangExt};
use weightloom_layout::ReduceOp;

use super::gather;
use super::items::{Metadata, SavePlan, WriteData, WriteItem};
use super::save::PlanError;
use crate::error::CheckpointError;
use crate::fingerprint::Fingerprint;

/// Whether a planner's gathered plans may be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanCaching {
    /// While no rank's local plan changes, but for the contents of bytes:
    /// [`global_plan`](super::SavePlanner::global_plan) is not called again.
    #[default]
    WhileUnchanged,
    /// Never: `global_plan` depends on more than the local plans.
    Never,
}

/// The last gathered plan of a saver.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    last: Option<CachedPlan>,
}

#[derive(Debug)]
struct CachedPlan {
    local: SavePlan,
    plan: SavePlan,
    metadata: Metadata,
}

impl PlanCache {
    /// The last plan, if it is still right on all ranks. Every rank.
    pub(super) fn reuse(
        &self,
        local: &SavePlan,
        caching: PlanCaching,
        gang: &dyn Gang,
    ) -> Result<Option<(SavePlan, Metadata)>, CheckpointError> {
        let known =
            self.last.as_ref().filter(|last| caching == PlanCaching::WhileUnchanged && last.fits(local));
        let mut unchanged = [u64::from(known.is_some())];
        gang.all_reduce(&mut unchanged, ReduceOp::Sum)?;
        let Some(known) = known.filter(|_| unchanged[0] == gang.size() as u64) else { return Ok(None) };
        // Ranks may disagree on bytes now, though they did not before.
        let own: Vec<&WriteItem> = local.items.iter().filter(|item| is_bytes(item)).collect();
        let own: Vec<WriteItem> = own.into_iter().cloned().collect();
        let digests = agreed_digests(&gang.all_gather_objects(&own)?)?;
        let mut plan = known.plan.clone();
        for item in &mut plan.items {
            if let (WriteData::Bytes { digest, .. }, Some(new)) =
                (&mut item.data, digests.get(&item.index.name))
            {
                *digest = *new;
            }
        }
        Ok(Some((plan, known.metadata.clone())))
    }

    /// Keeps a plan.
    pub(super) fn keep(&mut self, local: SavePlan, plan: &SavePlan, metadata: &Metadata) {
        self.last = Some(CachedPlan { local, plan: plan.clone(), metadata: metadata.clone() });
    }

    /// Forgets the plan.
    pub(super) fn clear(&mut self) {
        self.last = None;
    }
}

impl CachedPlan {
    /// Whether a local plan is the one that this plan was made from, but for
    /// the contents of bytes.
    fn fits(&self, local: &SavePlan) -> bool {
        let SavePlan { redistributions, items, planner_data, storage_data } = local;
        let alike = |(ours, theirs): (&WriteItem, &WriteItem)| match (&ours.data, &theirs.data) {
            (WriteData::Bytes { length: a, .. }, WriteData::Bytes { length: b, .. }) => {
                a == b && ours.index == theirs.index && ours.section == theirs.section
            }
            _ => ours == theirs,
        };
        self.local.items.len() == items.len()
            && self.local.items.iter().zip(items).all(alike)
            && self.local.redistributions == *redistributions
            && self.local.planner_data == *planner_data
            && self.local.storage_data == *storage_data
    }
}

fn is_bytes(item: &WriteItem) -> bool {
    matches!(item.data, WriteData::Bytes { .. })
}

/// The digests of bytes by name, on which all ranks agree.
fn agreed_digests(ranks: &[Vec<WriteItem>]) -> Result<BTreeMap<String, Fingerprint>, PlanError> {
    gather::check_agreement(ranks)?;
    let digest = |item: &WriteItem| match item.data {
        WriteData::Bytes { digest, .. } => Some((item.index.name.clone(), digest)),
        WriteData::Tensor { .. } => None,
    };
    Ok(ranks.iter().flatten().filter_map(digest).collect())
}
