//! The gang of all ranks, and the gangs along the axes of meshes.

use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use weightloom_gang::Gang;
use weightloom_layout::Mesh;

use crate::dist_context::locked;
use crate::error::{DTensorError, Result};

/// The gang of all ranks, and the gangs along mesh axes, formed on first use.
pub(crate) struct ProcessGroups {
    /// None in a dry run.
    gang: Option<Arc<dyn Gang>>,
    rank: usize,
    along: Mutex<FxHashMap<(Mesh, usize), AxisGroup>>,
    /// By ascending ranks.
    over: Mutex<FxHashMap<Vec<usize>, AxisGroup>>,
}

/// The gang along one axis of a mesh, or of a whole mesh, and its members as mesh
/// ranks.
#[derive(Clone)]
pub(crate) struct AxisGroup {
    pub(crate) gang: Arc<dyn Gang>,
    pub(crate) peers: Arc<[usize]>,
}

impl ProcessGroups {
    pub(crate) fn new(gang: Arc<dyn Gang>) -> Self {
        Self { rank: gang.rank(), gang: Some(gang), along: Mutex::default(), over: Mutex::default() }
    }

    pub(crate) fn dry_run(rank: usize) -> Self {
        Self { rank, gang: None, along: Mutex::default(), over: Mutex::default() }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn gang(&self) -> Option<&Arc<dyn Gang>> {
        self.gang.as_ref()
    }

    pub(crate) fn along(&self, mesh: Mesh, axis: usize) -> Result<AxisGroup> {
        if let Some(group) = locked(&self.along).get(&(mesh, axis)) {
            return Ok(group.clone());
        }
        let Some(gang) = &self.gang else { return Err(DTensorError::DryRun { what: "run a collective" }) };
        let peers = mesh.peers(self.rank, axis)?;
        let group = AxisGroup { gang: gang.sub_gang(&peers)?, peers: peers.into() };
        locked(&self.along).insert((mesh, axis), group.clone());
        Ok(group)
    }

    /// The gang of all ranks of a mesh, in ascending order: the same for all meshes
    /// of the same ranks.
    pub(crate) fn over(&self, mesh: Mesh) -> Result<AxisGroup> {
        let mut ranks: Vec<usize> = mesh.ranks().collect();
        ranks.sort_unstable();
        if let Some(group) = locked(&self.over).get(&ranks) {
            return Ok(group.clone());
        }
        let Some(gang) = &self.gang else { return Err(DTensorError::DryRun { what: "run a collective" }) };
        let group = AxisGroup { gang: gang.sub_gang(&ranks)?, peers: ranks.as_slice().into() };
        locked(&self.over).insert(ranks, group.clone());
        Ok(group)
    }
}
