//! Checks of a user's load plan against the checkpoint, before anything is read.

use std::collections::{BTreeMap, BTreeSet};

use weightloom_layout::{Region, Shape};

use crate::index::{Index, TensorEntry};
use crate::plan::{LoadPlan, PlannerProblem, ReadItem};

/// Where an item reads and writes.
#[derive(Clone, Debug)]
pub(super) struct PlannedRead {
    /// The region of the stored tensor.
    pub(super) source: Region,
    /// The region of the destination.
    pub(super) into: Region,
}

/// Refuses bytes that the checkpoint lacks or that are planned twice.
pub(super) fn check_names(plan: &LoadPlan, index: &Index) -> Result<(), PlannerProblem> {
    let mut wanted_names = BTreeSet::new();
    for (stored, wanted) in &plan.bytes {
        if index.bytes_at(stored).is_none() {
            return Err(PlannerProblem::NotStored { name: stored.clone() });
        }
        if !wanted_names.insert(wanted) {
            return Err(PlannerProblem::Repeated { name: wanted.clone() });
        }
    }
    Ok(())
}

/// The regions of all items, each inside its stored tile.
pub(super) fn check_reads(plan: &LoadPlan, index: &Index) -> Result<Vec<PlannedRead>, PlannerProblem> {
    let read = |item: &ReadItem| {
        let name = &item.storage.name;
        let entry = index.tensors().get(name);
        let entry = entry.ok_or_else(|| PlannerProblem::NotStored { name: name.clone() })?;
        check_read(item, entry)
    };
    plan.tensors.iter().map(read).collect()
}

fn check_read(item: &ReadItem, entry: &TensorEntry) -> Result<PlannedRead, PlannerProblem> {
    let stored = &item.storage.name;
    let tile = tile_of(item, entry)?;
    let outside = |name: &str| {
        let name = name.to_owned();
        move |problem| PlannerProblem::Outside { name, problem }
    };
    let box_of = |offsets: &[usize], name: &str| Region::new(offsets, &item.lengths).map_err(outside(name));
    let into = box_of(&item.destination_offsets, &item.destination.name)?;
    let in_tile = box_of(&item.storage_offsets, stored)?;
    in_tile.check_inside(&tile.shape()).map_err(outside(stored))?;
    let start: Vec<usize> = in_tile.start().iter().zip(tile.start()).map(|(a, b)| a + b).collect();
    Ok(PlannedRead { source: box_of(&start, stored)?, into })
}

/// The region of the tile that an item reads from; the whole tensor if it names
/// none.
fn tile_of(item: &ReadItem, entry: &TensorEntry) -> Result<Region, PlannerProblem> {
    let absent = || PlannerProblem::NoTile { name: item.storage.name.clone() };
    let starts_there = |region: &Region| {
        let offset = item.storage.offset.as_ref();
        offset.is_none_or(|offset| region.start() == offset.as_slice())
    };
    let tile = match (item.storage.ordinal, &item.storage.offset) {
        (None, None) => return Ok(Region::whole(&entry.shape)),
        (Some(ordinal), _) => entry.tiles.get(ordinal).filter(|tile| starts_there(&tile.region)),
        (None, Some(_)) => entry.tiles.iter().find(|tile| starts_there(&tile.region)),
    };
    tile.map(|tile| tile.region.clone()).ok_or_else(absent)
}

/// Stored tensors with elements that several items read.
pub(super) fn reread_tensors(plan: &LoadPlan, reads: &[PlannedRead]) -> BTreeSet<String> {
    let mut sources: BTreeMap<&str, Vec<&Region>> = BTreeMap::new();
    for (item, read) in plan.tensors.iter().zip(reads) {
        sources.entry(&item.storage.name).or_default().push(&read.source);
    }
    let overlaps =
        sources.into_iter().filter_map(|(name, mut regions)| overlap(&mut regions).then_some(name));
    overlaps.map(str::to_owned).collect()
}

/// Whether two regions share an element.
fn overlap(regions: &mut [&Region]) -> bool {
    let first_dim = |region: &Region| match region.ndim() {
        0 => 0..1,
        _ => region.range(0),
    };
    regions.sort_by_key(|region| first_dim(region).start);
    regions.iter().enumerate().any(|(at, region)| {
        // Only regions that begin before this one ends can overlap it.
        let later = regions[at + 1..].iter();
        let mut near = later.take_while(|other| first_dim(other).start < first_dim(region).end);
        near.any(|other| region.intersect(other).is_some_and(|common| !common.is_empty()))
    })
}

/// The one region of a stored tensor that fills a destination, if its items are
/// a single shift of it.
pub(super) fn single_region(
    items: &[(&ReadItem, &PlannedRead)],
    shape: &Shape,
    entry: &TensorEntry,
) -> Option<Region> {
    let shift = |(_, read): &(&ReadItem, &PlannedRead)| -> Option<Vec<usize>> {
        read.source.start().iter().zip(read.into.start()).map(|(a, b)| a.checked_sub(*b)).collect()
    };
    let (first, rest) = items.split_first()?;
    let start = shift(first)?;
    let same = |item: &&(&ReadItem, &PlannedRead)| {
        item.0.storage.name == first.0.storage.name && shift(item).as_ref() == Some(&start)
    };
    let region = Region::new(&start, shape).ok().filter(|region| region.check_inside(&entry.shape).is_ok());
    region.filter(|_| rest.iter().all(|item| same(&item)))
}
