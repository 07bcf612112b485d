//! The default planner of loads.

use weightloom_errors::nearest;
use weightloom_layout::Region;

use super::items::{LoadPlan, MetadataIndex, ReadItem};
use super::load::{
    Destination, LoadPlanError, LoadPlanner, LoadState, MissingKeys, ShapeMismatch, Slot, StateMismatch,
    UnexpectedKeys, UnmatchedKey,
};
use super::save::{PlanContext, PlanError};
use crate::index::{Index, TensorEntry};
use crate::parts::Part;
use crate::state::{Sharding, TensorSpec};

/// The default planner.
#[derive(Debug, Default)]
pub struct StandardLoadPlanner<'a> {
    /// What to do about missing entries.
    pub missing: MissingKeys,
    /// What to do about unexpected entries.
    pub unexpected: UnexpectedKeys,
    state: LoadState<'a>,
    context: Option<PlanContext>,
}

impl<'a> StandardLoadPlanner<'a> {
    /// A planner for a state that refuses any mismatch.
    pub fn new(state: LoadState<'a>) -> Self {
        Self { state, ..Self::default() }
    }

    fn mismatch(&self, index: &Index) -> StateMismatch {
        let mut mismatch = StateMismatch::default();
        let near =
            |name: &str, there: &mut dyn Iterator<Item = &str>| nearest(name, there).map(str::to_owned);
        for (name, slot) in &self.state.slots {
            let found = match slot {
                Slot::Bytes(_) => index.bytes_at(name).is_some(),
                Slot::Tensor { spec, .. } => match index.tensors().get(name) {
                    Some(entry) => {
                        if entry.shape != spec.shape {
                            mismatch.shapes.push(ShapeMismatch {
                                name: name.clone(),
                                wanted: spec.shape.clone(),
                                found: entry.shape.clone(),
                            });
                        }
                        true
                    }
                    None => false,
                },
            };
            if !found && self.missing == MissingKeys::Error {
                let near = near(name, &mut index.tensors().keys().map(String::as_str));
                mismatch.missing.push(UnmatchedKey { name: name.clone(), near });
            }
        }
        if self.unexpected == UnexpectedKeys::Error {
            for name in index.tensors().keys().filter(|name| !self.state.slots.contains_key(*name)) {
                let near = near(name, &mut self.state.slots.keys().map(String::as_str));
                mismatch.unexpected.push(UnmatchedKey { name: name.clone(), near });
            }
        }
        mismatch
    }
}

impl<'a> LoadPlanner<'a> for StandardLoadPlanner<'a> {
    fn name(&self) -> &str {
        super::STANDARD
    }

    fn configure(&mut self, index: &Index, context: PlanContext) -> Result<(), LoadPlanError> {
        self.context = Some(context);
        let mismatch = self.mismatch(index);
        if mismatch.is_empty() { Ok(()) } else { Err(LoadPlanError::StateMismatch(Box::new(mismatch))) }
    }

    fn local_plan(&mut self, index: &Index) -> Result<LoadPlan, LoadPlanError> {
        let context = self.context.ok_or(PlanError::NotConfigured)?;
        let mut plan = LoadPlan::default();
        for (name, slot) in &self.state.slots {
            let Slot::Tensor { spec, into } = slot else {
                if index.bytes_at(name).is_some() {
                    plan.bytes.push((name.clone(), name.clone()));
                }
                continue;
            };
            let Some(entry) = index.tensors().get(name) else { continue };
            if let Sharding::Parts(parts) = &spec.sharding {
                plan.tensors.extend(parts.iter().flat_map(|part| read_part(name, part, entry)));
                continue;
            }
            let region = match wanted(name, spec, context.rank) {
                // A rank outside the mesh may list the tensor with empty memory.
                Err(LoadPlanError::NotHeld { .. }) if into.is_empty() => continue,
                region => region?,
            };
            let destination = MetadataIndex::part(name, &region);
            plan.tensors.extend(reads_of(name, &region, entry).map(|read| read.item(destination.clone())));
        }
        Ok(plan)
    }

    fn destinations(&self, index: &Index) -> Vec<String> {
        let Some(context) = self.context else { return Vec::new() };
        let is_filled = |name: &str, slot: &Slot<'_>| match slot {
            Slot::Bytes(_) => index.bytes_at(name).is_some(),
            Slot::Tensor { spec, into } => {
                let held = spec.volume(context.rank).is_ok_and(|volume| volume > 0);
                held && !into.is_empty() && index.tensors().contains_key(name)
            }
        };
        let filled = self.state.slots.iter().filter(|(name, slot)| is_filled(name, slot));
        filled.map(|(name, _)| name.clone()).collect()
    }

    fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError> {
        let name = &item.destination.name;
        let rank = self.context.ok_or(PlanError::NotConfigured)?.rank;
        match self.state.slots.remove(name) {
            Some(Slot::Tensor { spec, into }) => {
                let shape = match &spec.sharding {
                    Sharding::Parts(parts) => parts.local_shape().clone(),
                    _ => wanted(name, &spec, rank)?.shape(),
                };
                Ok(Destination { shape, dtype: spec.dtype, bytes: into })
            }
            _ => Err(LoadPlanError::NoSuchItem { name: name.clone() }),
        }
    }

    fn apply_tensor(&mut self, _item: &ReadItem, _filled: Destination<'a>) -> Result<(), LoadPlanError> {
        // The destination is the caller's memory.
        Ok(())
    }

    fn apply_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), LoadPlanError> {
        match self.state.slots.get_mut(name) {
            Some(Slot::Bytes(into)) => {
                **into = bytes;
                Ok(())
            }
            _ => Err(LoadPlanError::NoSuchItem { name: name.to_owned() }),
        }
    }
}

/// The reads of a part of a tensor, into memory of several parts.
fn read_part(name: &str, part: &Part, entry: &TensorEntry) -> Vec<ReadItem> {
    let reads = reads_of(name, &part.whole, entry).map(|mut read| {
        let offsets = read.offsets.iter_mut().zip(part.local.start());
        offsets.for_each(|(offset, start)| *offset += start);
        read.item(MetadataIndex::whole(name))
    });
    reads.collect()
}

/// A box of a stored tile.
struct TileRead {
    storage: MetadataIndex,
    storage_offsets: Vec<usize>,
    lengths: Vec<usize>,
    /// The offset in the region that is read.
    offsets: Vec<usize>,
}

impl TileRead {
    fn item(self, destination: MetadataIndex) -> ReadItem {
        let Self { storage, storage_offsets, lengths, offsets } = self;
        ReadItem { destination, destination_offsets: offsets, storage, storage_offsets, lengths }
    }
}

/// The boxes of the stored tiles that a region consists of.
fn reads_of<'a>(
    name: &'a str,
    region: &'a Region,
    entry: &'a TensorEntry,
) -> impl Iterator<Item = TileRead> + 'a {
    entry.tiles.iter().enumerate().filter_map(move |(ordinal, tile)| {
        let part = region.intersect(&tile.region).filter(|part| !part.is_empty())?;
        let from = |outer: &Region| -> Vec<usize> {
            part.start().iter().zip(outer.start()).map(|(a, b)| a - b).collect()
        };
        let offset = Some(tile.region.start().to_vec());
        let storage = MetadataIndex { name: name.to_owned(), offset, ordinal: Some(ordinal) };
        let lengths = part.size().to_vec();
        Some(TileRead { storage, storage_offsets: from(&tile.region), lengths, offsets: from(region) })
    })
}

fn wanted(name: &str, spec: &TensorSpec, rank: usize) -> Result<Region, LoadPlanError> {
    if let Sharding::Layout(layout) = spec.sharding
        && layout.pending().next().is_some()
    {
        return Err(LoadPlanError::Pending { name: name.to_owned(), layout: layout.to_string() });
    }
    let region =
        spec.region(rank).map_err(|problem| LoadPlanError::Layout { name: name.to_owned(), problem })?;
    region.ok_or_else(|| LoadPlanError::NotHeld { name: name.to_owned(), rank })
}
