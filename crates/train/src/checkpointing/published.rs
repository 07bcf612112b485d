//! Parameters under the names and in the layouts of published models, so that other
//! programs load what a run saves.
//!
//! A renamed parameter is saved from the memory it is in. One that is split, joined,
//! stacked or regrouped along a sharded dim is redistributed first, so that each
//! rank transforms its shard alone.

use std::collections::BTreeMap;
use std::ops::Range;

use weightloom_checkpoint::{KeyError, KeyMap, TensorView};
use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_layout::{Layout, Placement, Shape};
use weightloom_tensor::{TensorError, no_grad};

use crate::error::TrainError;

/// Applies a map to the parameters of a stage. Called by every rank of the stage.
pub(super) fn publish(
    keys: &KeyMap,
    parameters: BTreeMap<String, DTensor>,
) -> Result<BTreeMap<String, DTensor>, TrainError> {
    if keys.rules.is_empty() {
        return Ok(parameters);
    }
    let own = parameters.into_iter().map(|(name, value)| (name, Sharded(value.detach()))).collect();
    let published = no_grad(|| keys.apply_to(own))?;
    Ok(published.into_iter().map(|(name, value)| (name, value.0)).collect())
}

/// A tensor of which each rank holds a shard.
#[derive(Clone)]
struct Sharded(DTensor);

impl From<KeyError> for TrainError {
    fn from(error: KeyError) -> Self {
        Self::Checkpoint(error.into())
    }
}

impl Sharded {
    /// The tensor in a layout that does not shard a dim, but another in its place.
    fn with_whole(&self, dim: usize) -> Result<DTensor, TrainError> {
        let (layout, ndim) = (self.0.layout(), self.0.shape().ndim());
        let instead = match ndim {
            0 | 1 => Placement::Replicate,
            _ => Placement::Shard((dim + 1) % ndim),
        };
        let moved =
            |placement: &Placement| if *placement == Placement::Shard(dim) { instead } else { *placement };
        let placements: Vec<Placement> = layout.placements().iter().map(moved).collect();
        if placements == layout.placements() {
            return Ok(self.0.clone());
        }
        Ok(self.0.redistribute(Layout::new(layout.mesh(), &placements).map_err(DTensorError::from)?)?)
    }

    fn reshaped(value: &DTensor, dims: &[usize]) -> Result<DTensor, TrainError> {
        Ok(value.reshape(&Shape::new(dims).map_err(TensorError::from)?)?)
    }
}

impl TensorView for Sharded {
    type Error = TrainError;

    fn shape(&self) -> &Shape {
        self.0.shape()
    }

    fn narrow(&self, _name: &str, dim: usize, range: Range<usize>) -> Result<Self, TrainError> {
        Ok(Self(self.with_whole(dim)?.narrow(dim, range.start, range.len())?))
    }

    fn join(_name: &str, dim: usize, parts: &[Self]) -> Result<Self, TrainError> {
        let parts = parts.iter().map(|part| part.with_whole(dim)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(DTensor::cat(&parts.iter().collect::<Vec<_>>(), dim)?))
    }

    fn stack(_name: &str, parts: &[Self]) -> Result<Self, TrainError> {
        Ok(Self(DTensor::stack(&parts.iter().map(|part| &part.0).collect::<Vec<_>>(), 0)?))
    }

    fn unstack(&self, _name: &str) -> Result<Vec<Self>, TrainError> {
        let whole = self.with_whole(0)?;
        let dims = whole.shape().to_vec();
        let slice = |number: usize| -> Result<Self, TrainError> {
            Ok(Self(Self::reshaped(&whole.narrow(0, number, 1)?, dims.get(1..).unwrap_or_default())?))
        };
        (0..dims.first().copied().unwrap_or(0)).map(slice).collect()
    }

    fn transpose(&self, _name: &str) -> Result<Self, TrainError> {
        let last = self.0.shape().ndim().max(2) - 1;
        Ok(Self(self.0.transpose(last - 1, last)?))
    }

    fn regroup(&self, _name: &str, dim: usize, outer: usize, inner: usize) -> Result<Self, TrainError> {
        let whole = self.with_whole(dim)?;
        let dims = whole.shape().to_vec();
        let rest = dims.get(dim).and_then(|size| size.checked_div(outer.saturating_mul(inner))).unwrap_or(0);
        let mut grouped = dims.clone();
        grouped.splice(dim..=dim, [outer, inner, rest]);
        let turned = Self::reshaped(&whole, &grouped)?.transpose(dim + 1, dim + 2)?;
        Ok(Self(Self::reshaped(&turned, &dims)?))
    }
}
