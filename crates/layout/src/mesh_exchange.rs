//! Transfers between ranks when a tensor moves to another mesh.

use crate::layout::{Layout, LayoutError};
use crate::region::Region;
use crate::shape::Shape;

/// A region that one rank sends to another, or keeps (`from == to`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RegionTransfer {
    pub from: usize,
    pub to: usize,
    /// In global indices.
    pub region: Region,
}

/// The transfers from a layout on one mesh to a layout on another.
///
/// Each rank derives its own sends and receives without communication. A rank
/// keeps a region that it already holds; the replicas of a region share the
/// sends.
#[derive(Clone, Debug)]
pub struct MeshExchange {
    source: Layout,
    target: Layout,
    shape: Shape,
}

impl MeshExchange {
    /// Prepares the exchange of one tensor. Partial values are copied from one
    /// replica without reduction, so neither layout should have any;
    /// [`plan`](crate::plan) takes care of that.
    pub fn new(source: Layout, target: Layout, shape: &Shape) -> Result<Self, LayoutError> {
        source.check_shape(shape)?;
        target.check_shape(shape)?;
        Ok(Self { source, target, shape: shape.clone() })
    }

    /// The transfers to a rank of the target mesh. Their regions are disjoint
    /// and cover its target region.
    pub fn receives(&self, rank: usize) -> Result<Vec<RegionTransfer>, LayoutError> {
        let wanted = self.target.region_of(&self.shape, rank)?;
        let mut transfers = Vec::new();
        let mut owners = self.source.owners_of(&self.shape, &wanted)?;
        owners.sort_by(|a, b| a.region.cmp(&b.region));
        for replicas in owners.chunk_by(|a, b| a.region == b.region) {
            let ranks: Vec<usize> = replicas.iter().map(|owner| owner.rank).collect();
            let from = self.sender(&ranks, rank)?;
            transfers.push(RegionTransfer { from, to: rank, region: replicas[0].region.clone() });
        }
        Ok(transfers)
    }

    /// The transfers from a rank of the source mesh.
    pub fn sends(&self, rank: usize) -> Result<Vec<RegionTransfer>, LayoutError> {
        let held = self.source.region_of(&self.shape, rank)?;
        let replicas = self.source.replicas(rank)?;
        let mut transfers = Vec::new();
        for receiver in self.target.owners_of(&self.shape, &held)? {
            if self.sender(&replicas, receiver.rank)? == rank {
                transfers.push(RegionTransfer { from: rank, to: receiver.rank, region: receiver.region });
            }
        }
        Ok(transfers)
    }

    /// The replica that sends to a receiver. `replicas` is in mesh order.
    fn sender(&self, replicas: &[usize], receiver: usize) -> Result<usize, LayoutError> {
        if replicas.contains(&receiver) {
            return Ok(receiver);
        }
        Ok(replicas[self.target.mesh().position(receiver)? % replicas.len()])
    }
}
