//! Destinations of a load, and how they are filled.

use rustc_hash::FxHashMap;
use weightloom_layout::{DType, Region, Shape, Tile, TileMut, check_tiling, copy_region};

use super::check::{PlannedRead, single_region};
use super::planning::CheckedPlan;
use crate::chunk_sums::ChunkSums;
use crate::error::CheckpointError;
use crate::formats::Source;
use crate::index::TensorEntry;
use crate::observer::Observer;
use crate::plan::{
    Destination, LoadPlanError, LoadPlanner, MetadataIndex, PlannerCalls, PlannerProblem, ReadItem,
};
use crate::read::{ReadOptions, ReadReport, ReadRequest, read_verified};

/// A destination and what fills it.
pub(super) struct Fill<'i, 'a> {
    /// The first item.
    pub(super) item: &'i ReadItem,
    pub(super) destination: Destination<'a>,
    /// The region of one stored tensor that fills it; `None` if it is filled
    /// part by part.
    pub(super) region: Option<Region>,
    /// Its items, unless one region fills it.
    parts: Vec<(&'i ReadItem, &'i PlannedRead)>,
}

/// Asks the planner for the destinations of all items.
pub(super) fn acquire<'i, 'a>(
    planner: &mut dyn LoadPlanner<'a>,
    calls: &PlannerCalls,
    checked: &'i CheckedPlan,
    fills: &mut Vec<Fill<'i, 'a>>,
) -> Result<(), CheckpointError> {
    let items = &checked.plan.tensors;
    let Some(reads) = &checked.reads else {
        // The items of a destination follow one another, and are one region.
        for item in items {
            if fills.last().is_some_and(|last| last.item.destination == item.destination) {
                continue;
            }
            let destination = calls.run("acquire_tensor", || planner.acquire_tensor(item))?;
            let region = standard_region(item, &destination.shape);
            fills.push(Fill { item, destination, region, parts: Vec::new() });
        }
        return Ok(());
    };
    let mut known: FxHashMap<&MetadataIndex, usize> = FxHashMap::default();
    for (item, read) in items.iter().zip(reads) {
        if let Some(&number) = known.get(&item.destination) {
            fills[number].parts.push((item, read));
            continue;
        }
        known.insert(&item.destination, fills.len());
        let destination = calls.run("acquire_tensor", || planner.acquire_tensor(item))?;
        fills.push(Fill { item, destination, region: None, parts: vec![(item, read)] });
    }
    fills.iter().try_for_each(|fill| check_filled(fill, calls))
}

/// The region that fills a destination of the default planner.
fn standard_region(item: &ReadItem, shape: &Shape) -> Option<Region> {
    Region::new(item.destination.offset.as_deref()?, shape).ok()
}

/// Refuses memory of another size than its shape, and items that do not fill it
/// exactly once.
fn check_filled(fill: &Fill<'_, '_>, calls: &PlannerCalls) -> Result<(), CheckpointError> {
    let Destination { shape, dtype, bytes } = &fill.destination;
    let name = || fill.item.destination.name.clone();
    let (expected, found) = (shape.volume() as u64 * dtype.size() as u64, bytes.len() as u64);
    if expected != found {
        return Err(calls.error(PlannerProblem::Length { name: name(), expected, found }));
    }
    for (_, read) in &fill.parts {
        let inside = read.into.check_inside(shape);
        inside.map_err(|problem| calls.error(PlannerProblem::Outside { name: name(), problem }))?;
    }
    let regions: Vec<Region> = fill.parts.iter().map(|(_, read)| read.into.clone()).collect();
    check_tiling(shape, &regions)
        .map_err(|problem| calls.error(PlannerProblem::NotFilledOnce { name: name(), problem }))
}

/// Reads destinations.
pub(super) struct FillReader<'r> {
    pub(super) source: &'r Source,
    pub(super) options: &'r ReadOptions,
    pub(super) sums: Option<&'r ChunkSums>,
    pub(super) observer: &'r dyn Observer,
}

impl FillReader<'_> {
    /// Reads the destinations whose names are ours to read.
    pub(super) fn read(
        &self,
        fills: &mut [Fill<'_, '_>],
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<ReadReport, CheckpointError> {
        let mut requests = Vec::new();
        let mut staged = Vec::new();
        for fill in fills.iter_mut().filter(|fill| is_ours(&fill.item.destination.name)) {
            let entry = self.entry(fill.item)?;
            if fill.region.is_none() {
                fill.region = single_region(&fill.parts, &fill.destination.shape, entry);
            }
            match fill.region.clone() {
                Some(region) => requests.push(ReadRequest {
                    entry,
                    name: &fill.item.storage.name,
                    region,
                    dtype: fill.destination.dtype,
                    into: fill.destination.bytes,
                }),
                None => staged.push(fill),
            }
        }
        let mut report = read_verified(self.source, requests, self.options, self.sums, self.observer)?;
        for fill in staged {
            report += self.read_parts(fill)?;
        }
        Ok(report)
    }

    /// Reads the parts of a destination, as many at once as the budget allows.
    fn read_parts(&self, fill: &mut Fill<'_, '_>) -> Result<ReadReport, CheckpointError> {
        let dtype = fill.destination.dtype;
        let size = |read: &PlannedRead| read.into.volume() * dtype.size();
        let mut report = ReadReport::default();
        let mut rest = fill.parts.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|(_, read)| {
                bytes += size(read);
                bytes <= self.options.budget
            });
            let (batch, after) = rest.split_at(fits.count().max(1));
            rest = after;
            let mut buffers: Vec<Vec<u8>> = batch.iter().map(|(_, read)| vec![0; size(read)]).collect();
            report += self.read_batch(batch, dtype, &mut buffers)?;
            let whole = Region::whole(&fill.destination.shape);
            for ((item, read), bytes) in batch.iter().zip(&buffers) {
                let into = &mut TileMut { region: &whole, bytes: fill.destination.bytes };
                let copied = copy_region(&read.into, dtype.size(), Tile { region: &read.into, bytes }, into);
                copied.map_err(|_| LoadPlanError::NoSuchItem { name: item.destination.name.clone() })?;
            }
        }
        Ok(report)
    }

    fn read_batch(
        &self,
        batch: &[(&ReadItem, &PlannedRead)],
        dtype: DType,
        buffers: &mut [Vec<u8>],
    ) -> Result<ReadReport, CheckpointError> {
        let mut requests = Vec::with_capacity(batch.len());
        for ((item, read), into) in batch.iter().zip(buffers) {
            let (entry, region) = (self.entry(item)?, read.source.clone());
            requests.push(ReadRequest { entry, name: &item.storage.name, region, dtype, into });
        }
        read_verified(self.source, requests, self.options, self.sums, self.observer)
    }

    fn entry(&self, item: &ReadItem) -> Result<&TensorEntry, CheckpointError> {
        let name = &item.storage.name;
        let entry = self.source.index.tensors().get(name);
        entry.ok_or_else(|| LoadPlanError::NoSuchItem { name: name.clone() }.into())
    }
}
