//! The plan that every rank derives alone, since layouts determine what all
//! ranks hold.
//!
//! The cost is a few additions per tensor and rank: tiles depend only on layout
//! and shape, and are computed once for all tensors that share both.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use weightloom_layout::{Layout, LayoutId, Region, Shape, check_tiling};

use super::balance::WriteLoad;
use super::items::{MetadataIndex, WriteData, WriteItem};
use super::save::PlanError;
use super::standard_save::{Subject, SubjectKind};

/// The tiles of a tensor and the ranks that hold them.
#[derive(Debug)]
pub(super) struct Tiles {
    /// In ascending order, none empty.
    regions: Vec<Region>,
    /// The ranks that hold each, ascending; equally many for all.
    holders: Vec<u32>,
    copies: usize,
    /// Numbers of tiles by volume, the largest first.
    by_volume: Vec<(usize, Vec<u32>)>,
}

impl Tiles {
    fn new(name: &str, layout: Layout, shape: &Shape) -> Result<Self, PlanError> {
        let failed = |problem| PlanError::Layout { name: name.to_owned(), problem };
        if layout.pending().next().is_some() {
            return Err(PlanError::Pending { name: name.to_owned(), layout: layout.to_string() });
        }
        let mesh = layout.mesh();
        let mut groups: Vec<(Region, Vec<u32>)> = Vec::new();
        for rank in mesh.ranks() {
            if layout.first_replica(rank).map_err(failed)? != rank {
                continue;
            }
            let region = layout.region_of(shape, rank).map_err(failed)?;
            if region.is_empty() {
                continue;
            }
            let mut holders: Vec<u32> =
                layout.replicas(rank).map_err(failed)?.into_iter().map(|rank| rank as u32).collect();
            holders.sort_unstable();
            groups.push((region, holders));
        }
        groups.sort_unstable();
        let copies = groups.first().map_or(1, |(_, holders)| holders.len());
        let (regions, holders): (Vec<Region>, Vec<Vec<u32>>) = groups.into_iter().unzip();
        check_tiling(shape, &regions)
            .map_err(|problem| PlanError::Tiling { name: name.to_owned(), problem })?;
        let mut by_volume: FxHashMap<usize, Vec<u32>> = FxHashMap::default();
        for (number, region) in regions.iter().enumerate() {
            by_volume.entry(region.volume()).or_default().push(number as u32);
        }
        let mut by_volume: Vec<(usize, Vec<u32>)> = by_volume.into_iter().collect();
        by_volume.sort_unstable_by_key(|(volume, _)| std::cmp::Reverse(*volume));
        Ok(Self { regions, holders: holders.concat(), copies, by_volume })
    }

    fn holders(&self, number: u32) -> &[u32] {
        let start = number as usize * self.copies;
        &self.holders[start..start + self.copies]
    }
}

/// Tiles by layout and shape.
#[derive(Debug, Default)]
pub(super) struct TileCache(FxHashMap<(LayoutId, Shape), Arc<Tiles>>);

impl TileCache {
    /// Number of items that the subjects are written in.
    pub(super) fn count(&self, subjects: &[Subject]) -> usize {
        let items = |subject: &Subject| match &subject.kind {
            SubjectKind::Laid { layout, shape, .. } => {
                self.0.get(&(layout.id(), shape.clone())).map_or(0, |tiles| tiles.regions.len())
            }
            SubjectKind::Boxed { .. } | SubjectKind::Bytes { .. } => 1,
        };
        subjects.iter().map(items).sum()
    }

    fn get(&mut self, name: &str, layout: Layout, shape: &Shape) -> Result<Arc<Tiles>, PlanError> {
        let key = (layout.id(), shape.clone());
        if let Some(tiles) = self.0.get(&key) {
            return Ok(Arc::clone(tiles));
        }
        let tiles = Arc::new(Tiles::new(name, layout, shape)?);
        self.0.insert(key, Arc::clone(&tiles));
        Ok(tiles)
    }
}

/// A tensor or bytes with several holders.
enum Shared<'a> {
    Tiles { subject: &'a Subject, tiles: Arc<Tiles>, numbers: &'a [u32] },
    Bytes { subject: &'a Subject },
}

/// The items of rank `me` of `world`, and the load of every rank.
pub(super) fn derive(
    subjects: &[Subject],
    cache: &mut TileCache,
    me: usize,
    world: usize,
) -> Result<(Vec<WriteItem>, WriteLoad), PlanError> {
    let mut items = Vec::new();
    let mut load = WriteLoad::new(world);
    let mut tensors = Vec::with_capacity(subjects.len());
    for subject in subjects {
        if let SubjectKind::Laid { layout, shape, .. } = &subject.kind {
            if let Some(rank) = layout.mesh().ranks().find(|&rank| rank >= world) {
                return Err(PlanError::NoSuchRank { name: subject.name.clone(), rank, world });
            }
            tensors.push((subject, cache.get(&subject.name, *layout, shape)?));
        }
    }
    // Tiles without replicas.
    for (subject, tiles) in tensors.iter().filter(|(_, tiles)| tiles.copies == 1) {
        for (&holder, region) in tiles.holders.iter().zip(&tiles.regions) {
            load.add(holder as usize, region.volume() as u64 * subject.width());
            if holder as usize == me {
                items.push(subject.item(region.clone()));
            }
        }
    }
    // Replicas, by size, then by name.
    let mut shared: Vec<(u64, Shared<'_>)> = Vec::new();
    for (subject, tiles) in tensors.iter().filter(|(_, tiles)| tiles.copies > 1) {
        for (volume, numbers) in &tiles.by_volume {
            let bytes = *volume as u64 * subject.width();
            shared.push((bytes, Shared::Tiles { subject, tiles: Arc::clone(tiles), numbers }));
        }
    }
    for subject in subjects {
        if let SubjectKind::Bytes { length, .. } = subject.kind {
            shared.push((length, Shared::Bytes { subject }));
        }
    }
    shared.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.name().cmp(y.name())));
    let everyone: Vec<u32> = (0..world as u32).collect();
    for (bytes, group) in &shared {
        match group {
            Shared::Bytes { subject } => {
                if load.assign(&everyone, *bytes) == me {
                    items.push(subject.item(Region::whole(&Shape::default())));
                }
            }
            Shared::Tiles { subject, tiles, numbers } => {
                for &number in *numbers {
                    if load.assign(tiles.holders(number), *bytes) == me {
                        items.push(subject.item(tiles.regions[number as usize].clone()));
                    }
                }
            }
        }
    }
    items.sort_by(|a, b| a.index.cmp(&b.index));
    Ok((items, load))
}

impl Shared<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Tiles { subject, .. } | Self::Bytes { subject } => &subject.name,
        }
    }
}

impl Subject {
    /// Bytes of one element.
    fn width(&self) -> u64 {
        match &self.kind {
            SubjectKind::Laid { dtype, .. } | SubjectKind::Boxed { dtype, .. } => dtype.size() as u64,
            SubjectKind::Bytes { .. } => 1,
        }
    }

    /// The item for a region, or for the bytes.
    pub(super) fn item(&self, region: Region) -> WriteItem {
        let (index, data) = match &self.kind {
            SubjectKind::Laid { dtype, shape, .. } | SubjectKind::Boxed { dtype, shape, .. } => (
                MetadataIndex::part(&self.name, &region),
                WriteData::Tensor { dtype: *dtype, shape: shape.clone(), region },
            ),
            SubjectKind::Bytes { length, digest } => {
                (MetadataIndex::whole(&self.name), WriteData::Bytes { length: *length, digest: *digest })
            }
        };
        WriteItem { index, section: self.section, data }
    }
}
