//! Execution of redistribution plans.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use weightloom_errors::Hint;
use weightloom_layout::{
    CopyError, DType, LayoutError, Mesh, MeshExchange, Plan, ReduceOp, Region, Stage, Step, Tile, TileMut,
    copy_region,
};

use crate::element::Element;
use crate::error::GangError;
use crate::gang::{Gang, GangExt};

/// The tag of messages between meshes, far from the small tags of callers.
const EXCHANGE_TAG: u32 = 0x5d10_0000;

/// Executes redistribution plans on the ranks of a gang, in host memory.
///
/// Mesh ranks are ranks of the gang. Forms the sub-gangs along mesh axes when a
/// plan first needs them, and keeps them.
pub struct Redistributor {
    root: Arc<dyn Gang>,
    axes: FxHashMap<(Mesh, usize), Axis>,
}

/// The gang along one axis of a mesh.
#[derive(Clone)]
struct Axis {
    gang: Arc<dyn Gang>,
    /// The members as mesh ranks, which are ranks of `root`, not of the world.
    peers: Arc<[usize]>,
}

/// An error of the execution of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RedistributeError {
    #[error("rank {rank} holds {found} {found_dtype}, but the plan expects {expected} {expected_dtype}")]
    Local { rank: usize, found: usize, found_dtype: DType, expected: usize, expected_dtype: DType },
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Gang(#[from] GangError),
    #[error(transparent)]
    Copy(#[from] CopyError),
}

impl Hint for RedistributeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Layout(error) => error.hint(),
            Self::Gang(error) => error.hint(),
            Self::Local { .. } | Self::Copy(_) => None,
        }
    }
}

impl Redistributor {
    /// Creates a redistributor over the ranks of `root`.
    pub fn new(root: Arc<dyn Gang>) -> Self {
        Self { root, axes: FxHashMap::default() }
    }

    /// Executes a plan. Every rank of both meshes calls this with the same plan
    /// and its local elements in row-major order. Ranks outside the source mesh
    /// pass none, and ranks outside the target mesh get none.
    pub fn run<T: Element>(&mut self, plan: &Plan, local: Vec<T>) -> Result<Vec<T>, RedistributeError> {
        let rank = self.root.rank();
        let expected = match plan.source().mesh().position(rank) {
            Ok(_) => plan.source().region_of(plan.shape(), rank)?.volume(),
            Err(_) => 0,
        };
        if T::DTYPE != plan.dtype() || local.len() != expected {
            return Err(RedistributeError::Local {
                rank,
                found: local.len(),
                found_dtype: T::DTYPE,
                expected,
                expected_dtype: plan.dtype(),
            });
        }
        let mut local = local;
        for stage in plan.stages() {
            local = self.stage(stage, plan, local)?;
        }
        Ok(local)
    }

    fn stage<T: Element>(
        &mut self,
        stage: &Stage,
        plan: &Plan,
        local: Vec<T>,
    ) -> Result<Vec<T>, RedistributeError> {
        let rank = self.root.rank();
        let shape = plan.shape();
        if stage.step == Step::Exchange {
            return self.exchange(stage, plan, &local);
        }
        let mesh = stage.before.mesh();
        if mesh.position(rank).is_err() {
            return Ok(local);
        }
        if stage.step.is_collective() && !stage.communicates() {
            return Ok(local);
        }
        let before = stage.before.region_of(shape, rank)?;
        let after = stage.after.region_of(shape, rank)?;
        match stage.step {
            Step::Slice { .. } => extract(&local, &before, &after),
            Step::Seed { axis, op } => {
                let first = mesh.coordinate(rank).map_err(LayoutError::from)?[axis] == 0;
                Ok(match op {
                    ReduceOp::Sum if !first => vec![T::zeroed(); local.len()],
                    ReduceOp::Prod if !first => vec![T::ONE; local.len()],
                    _ => local,
                })
            }
            Step::AllReduce { axis, op } => {
                let mut buffer = local;
                self.along(mesh, axis)?.gang.all_reduce(&mut buffer, op)?;
                Ok(buffer)
            }
            Step::ReduceScatter { axis, op, .. } => {
                let Axis { gang, peers } = self.along(mesh, axis)?;
                let parts = regions(&peers, |peer| stage.after.region_of(shape, peer))?;
                let (send, counts) = pack(&local, &before, &parts)?;
                let mut recv = vec![T::zeroed(); after.volume()];
                gang.reduce_scatter(&send, &counts, &mut recv, op)?;
                Ok(recv)
            }
            Step::AllGather { axis, dim } => {
                let Axis { gang, peers } = self.along(mesh, axis)?;
                let parts = regions(&peers, |peer| stage.before.region_of(shape, peer))?;
                let counts: Vec<usize> = parts.iter().map(Region::volume).collect();
                let mut recv = vec![T::zeroed(); after.volume()];
                gang.all_gather(&local, &counts, &mut recv)?;
                // Chunks of the outermost dim arrive in place.
                let in_place = after.size()[..dim].iter().all(|&size| size == 1);
                if in_place { Ok(recv) } else { unpack(&recv, &parts, &after) }
            }
            Step::AllToAll { axis, .. } => {
                let Axis { gang, peers } = self.along(mesh, axis)?;
                let sent = regions(&peers, |peer| Ok(before.common(&stage.after.region_of(shape, peer)?)))?;
                let received =
                    regions(&peers, |peer| Ok(stage.before.region_of(shape, peer)?.common(&after)))?;
                let (send, send_counts) = pack(&local, &before, &sent)?;
                let recv_counts: Vec<usize> = received.iter().map(Region::volume).collect();
                let mut recv = vec![T::zeroed(); after.volume()];
                gang.all_to_all(&send, &send_counts, &mut recv, &recv_counts)?;
                unpack(&recv, &received, &after)
            }
            _ => Ok(local),
        }
    }

    /// Moves a tensor between meshes by messages.
    fn exchange<T: Element>(
        &self,
        stage: &Stage,
        plan: &Plan,
        local: &[T],
    ) -> Result<Vec<T>, RedistributeError> {
        let rank = self.root.rank();
        let exchange = MeshExchange::new(stage.before, stage.after, plan.shape())?;
        let mut kept = None;
        if stage.before.mesh().position(rank).is_ok() {
            let held = stage.before.region_of(plan.shape(), rank)?;
            for transfer in exchange.sends(rank)? {
                let tile = extract(local, &held, &transfer.region)?;
                if transfer.to == rank {
                    kept = Some(tile);
                } else {
                    self.root.send_slice(&tile, transfer.to, EXCHANGE_TAG)?;
                }
            }
        }
        if stage.after.mesh().position(rank).is_err() {
            return Ok(Vec::new());
        }
        let wanted = stage.after.region_of(plan.shape(), rank)?;
        let mut result = vec![T::zeroed(); wanted.volume()];
        for transfer in exchange.receives(rank)? {
            let tile = if transfer.from == rank {
                kept.take().unwrap_or_default()
            } else {
                let mut tile = vec![T::zeroed(); transfer.region.volume()];
                self.root.recv(&mut tile, transfer.from, EXCHANGE_TAG)?;
                tile
            };
            insert(&tile, &transfer.region, &mut result, &wanted)?;
        }
        Ok(result)
    }

    /// The gang along one axis of a mesh that contains this rank.
    fn along(&mut self, mesh: Mesh, axis: usize) -> Result<Axis, RedistributeError> {
        if let Some(axis) = self.axes.get(&(mesh, axis)) {
            return Ok(axis.clone());
        }
        let peers = mesh.peers(self.root.rank(), axis).map_err(LayoutError::from)?;
        let formed = Axis { gang: self.root.sub_gang(&peers)?, peers: peers.into() };
        self.axes.insert((mesh, axis), formed.clone());
        Ok(formed)
    }
}

fn regions(
    peers: &[usize],
    region_of: impl Fn(usize) -> Result<Region, LayoutError>,
) -> Result<Vec<Region>, LayoutError> {
    peers.iter().map(|&peer| region_of(peer)).collect()
}

fn extract<T: Element>(local: &[T], held: &Region, wanted: &Region) -> Result<Vec<T>, RedistributeError> {
    let mut tile = vec![T::zeroed(); wanted.volume()];
    copy_elements(wanted, local, held, &mut tile, wanted)?;
    Ok(tile)
}

fn insert<T: Element>(
    tile: &[T],
    region: &Region,
    into: &mut [T],
    held: &Region,
) -> Result<(), RedistributeError> {
    copy_elements(region, tile, region, into, held)
}

/// Copies regions of a tensor into a contiguous buffer, with their lengths.
fn pack<T: Element>(
    local: &[T],
    held: &Region,
    parts: &[Region],
) -> Result<(Vec<T>, Vec<usize>), RedistributeError> {
    let counts: Vec<usize> = parts.iter().map(Region::volume).collect();
    let mut packed = vec![T::zeroed(); counts.iter().sum()];
    let mut rest = packed.as_mut_slice();
    for (part, &count) in parts.iter().zip(&counts) {
        let (into, after) = rest.split_at_mut(count);
        copy_elements(part, local, held, into, part)?;
        rest = after;
    }
    Ok((packed, counts))
}

/// Copies contiguous parts into their regions of a tensor.
fn unpack<T: Element>(packed: &[T], parts: &[Region], held: &Region) -> Result<Vec<T>, RedistributeError> {
    let mut result = vec![T::zeroed(); held.volume()];
    let mut rest = packed;
    for part in parts {
        let (tile, after) = rest.split_at(part.volume());
        insert(tile, part, &mut result, held)?;
        rest = after;
    }
    Ok(result)
}

fn copy_elements<T: Element>(
    wanted: &Region,
    source: &[T],
    source_region: &Region,
    target: &mut [T],
    target_region: &Region,
) -> Result<(), RedistributeError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let source = Tile { region: source_region, bytes: bytemuck::cast_slice(source) };
    let mut target = TileMut { region: target_region, bytes: bytemuck::cast_slice_mut(target) };
    Ok(copy_region(wanted, T::DTYPE.size(), source, &mut target)?)
}
