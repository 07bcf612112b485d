//! Who sends what to whom when a tensor changes its mesh.

use crate::layout::{Layout, LayoutError};
use crate::region::Region;
use crate::shape::Shape;

/// A region that one rank sends to another, or keeps (`from == to`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The rank that holds the region now.
    pub from: usize,
    /// The rank that will hold it.
    pub to: usize,
    /// The region, in global indices.
    pub region: Region,
}

/// The transfers from a layout on one mesh to a layout on another.
///
/// Each rank derives its own sends and receives without asking anybody. A rank
/// that already holds what it needs keeps it; otherwise the load is spread
/// over the replicas.
#[derive(Clone, Debug)]
pub struct Exchange {
    source: Layout,
    target: Layout,
    shape: Shape,
}

impl Exchange {
    /// Prepares the exchange of one tensor. Pending values are carried as they
    /// are found on whichever replica sends them, so both layouts should have
    /// none; [`plan`](crate::plan) sees to that.
    pub fn new(source: Layout, target: Layout, shape: &Shape) -> Result<Self, LayoutError> {
        source.check_shape(shape)?;
        target.check_shape(shape)?;
        Ok(Self { source, target, shape: shape.clone() })
    }

    /// What a rank of the target mesh receives, disjoint and together its
    /// whole target region.
    pub fn receives(&self, rank: usize) -> Result<Vec<Transfer>, LayoutError> {
        let wanted = self.target.region_of(&self.shape, rank)?;
        let mut transfers = Vec::new();
        let mut owners = self.source.owners_of(&self.shape, &wanted)?;
        owners.sort_by(|a, b| a.region.cmp(&b.region));
        for replicas in owners.chunk_by(|a, b| a.region == b.region) {
            let ranks: Vec<usize> = replicas.iter().map(|owner| owner.rank).collect();
            let from = self.sender(&ranks, rank)?;
            transfers.push(Transfer { from, to: rank, region: replicas[0].region.clone() });
        }
        Ok(transfers)
    }

    /// What a rank of the source mesh sends.
    pub fn sends(&self, rank: usize) -> Result<Vec<Transfer>, LayoutError> {
        let held = self.source.region_of(&self.shape, rank)?;
        let replicas = self.source.replicas(rank)?;
        let mut transfers = Vec::new();
        for receiver in self.target.owners_of(&self.shape, &held)? {
            if self.sender(&replicas, receiver.rank)? == rank {
                transfers.push(Transfer { from: rank, to: receiver.rank, region: receiver.region });
            }
        }
        Ok(transfers)
    }

    /// Which replica serves a receiver. `replicas` is in mesh order.
    fn sender(&self, replicas: &[usize], receiver: usize) -> Result<usize, LayoutError> {
        if replicas.contains(&receiver) {
            return Ok(receiver);
        }
        Ok(replicas[self.target.mesh().position(receiver)? % replicas.len()])
    }
}
