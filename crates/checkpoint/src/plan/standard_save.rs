//! The default planner of saves.

use weightloom_layout::{DType, Layout, Placement, Region, Shape};

use super::balance::WriteLoad;
use super::derive::{TileCache, derive};
use super::gather;
use super::items::{Metadata, Redistribution, SavePlan, TensorMetadata, WriteData, WriteItem};
use super::save::{PlanContext, PlanError, SavePlanner};
use crate::fingerprint::{Fingerprint, Mixer};
use crate::parts::Parts;
use crate::state::{Bytes, LeafValue, LocalTensor, Section, Sharding, State};

/// An entry to plan, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) section: Section,
    pub(super) kind: SubjectKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubjectKind {
    Laid { dtype: DType, shape: Shape, layout: Layout },
    Boxed { dtype: DType, shape: Shape, regions: Vec<Region> },
    Bytes { length: u64, digest: Fingerprint },
}

/// The default planner.
#[derive(Debug, Default)]
pub struct StandardSavePlanner {
    /// Run length in bytes below which a tensor is redistributed before it is
    /// written; 0 for never.
    pub redistribute_below: u64,
    context: Option<PlanContext>,
    subjects: Vec<Subject>,
    redistributions: Vec<Redistribution>,
    digests: Option<Digests>,
    tiles: TileCache,
    last: Option<(Fingerprint, SavePlan, Metadata)>,
}

/// Digests of what a plan depends on.
#[derive(Clone, Copy, Debug)]
struct Digests {
    /// Without the contents of bytes, which change with every step.
    plan: Fingerprint,
    /// With them, to compare ranks.
    whole: Fingerprint,
}

impl StandardSavePlanner {
    /// A planner that balances, and redistributions what would be written in runs
    /// of less than 8 KiB: about where a call for each run costs more than
    /// the exchange.
    pub fn new() -> Self {
        Self { redistribute_below: 8 << 10, ..Self::default() }
    }

    /// The load of every rank under the derived plan, and the number of items.
    pub fn derived_load(&mut self) -> Result<(WriteLoad, usize), PlanError> {
        let context = self.context.ok_or(PlanError::NotConfigured)?;
        let (_, load) = derive(&self.subjects, &mut self.tiles, context.rank, context.world)?;
        Ok((load, self.tiles.count(&self.subjects)))
    }

    /// Digests of everything that the plan depends on; `None` if it depends on
    /// regions that only other ranks know.
    fn digests(&self, context: PlanContext) -> Option<Digests> {
        let mut hash = Mixer::new();
        let mut contents = Mixer::new();
        hash.number(context.world as u64);
        hash.number(self.redistribute_below);
        for subject in &self.subjects {
            hash.text(&subject.name);
            hash.number(match subject.section {
                Section::Model => 0,
                Section::Training => 1,
            });
            match &subject.kind {
                SubjectKind::Boxed { .. } => return None,
                SubjectKind::Laid { dtype, shape, layout } => {
                    hash.text(dtype.name());
                    hash.number(shape.ndim() as u64);
                    shape.iter().for_each(|&size| hash.number(size as u64));
                    hash.text(&layout.to_string());
                }
                SubjectKind::Bytes { length, digest } => {
                    hash.number(u64::MAX);
                    hash.number(*length);
                    contents.number(digest.0 as u64);
                    contents.number((digest.0 >> 64) as u64);
                }
            }
        }
        // The layout that a tensor is held in may differ from the written one.
        for redistribution in &self.redistributions {
            hash.text(&redistribution.name);
            hash.text(&redistribution.from.to_string());
            hash.text(&redistribution.to.to_string());
        }
        let plan = hash.finish();
        contents.number(plan.0 as u64);
        contents.number((plan.0 >> 64) as u64);
        Some(Digests { plan, whole: contents.finish() })
    }

    /// Gives items of bytes the digests of the present contents.
    fn renew_digests(&self, items: &mut [WriteItem]) {
        for item in items {
            let WriteData::Bytes { digest, .. } = &mut item.data else { continue };
            let at = self.subjects.binary_search_by(|subject| subject.name.cmp(&item.index.name));
            if let Some(SubjectKind::Bytes { digest: new, .. }) = at.ok().map(|at| &self.subjects[at].kind) {
                *digest = *new;
            }
        }
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        for subject in &self.subjects {
            match &subject.kind {
                SubjectKind::Bytes { length, .. } => {
                    metadata.bytes.insert(subject.name.clone(), *length);
                }
                SubjectKind::Laid { dtype, shape, layout } => {
                    let entry = TensorMetadata {
                        section: subject.section,
                        dtype: *dtype,
                        shape: shape.clone(),
                        layout: Some(*layout),
                        chunks: Vec::new(),
                    };
                    metadata.tensors.insert(subject.name.clone(), entry);
                }
                SubjectKind::Boxed { .. } => {}
            }
        }
        metadata
    }
}

impl SavePlanner for StandardSavePlanner {
    fn name(&self) -> &str {
        super::STANDARD
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.context = Some(context);
        self.subjects.clear();
        self.redistributions.clear();
        for (name, leaf) in state.leaves() {
            let kind = match &leaf.value {
                LeafValue::Bytes(bytes) => {
                    let mut digest = Mixer::new();
                    digest.bytes(&bytes.to_host()?);
                    SubjectKind::Bytes { length: bytes.len() as u64, digest: digest.finish() }
                }
                LeafValue::Tensor(tensor) => {
                    let spec = &tensor.spec;
                    let (dtype, shape) = (spec.dtype, spec.shape.clone());
                    let failed = |problem| PlanError::Layout { name: name.clone(), problem };
                    let volume = spec.volume(context.rank).map_err(failed)?;
                    if tensor.bytes.len() != volume * dtype.size() {
                        let region = spec.region(context.rank).map_err(failed)?;
                        return Err(PlanError::Length {
                            name: name.clone(),
                            rank: context.rank,
                            region: region.unwrap_or_else(|| Region::whole(&Shape::default())),
                            expected: volume * dtype.size(),
                            found: tensor.bytes.len(),
                        });
                    }
                    match &spec.sharding {
                        Sharding::Region(region) => {
                            SubjectKind::Boxed { dtype, shape, regions: vec![region.clone()] }
                        }
                        Sharding::Parts(parts) => {
                            let regions = parts.iter().map(|part| part.whole.clone()).collect();
                            SubjectKind::Boxed { dtype, shape, regions }
                        }
                        Sharding::Layout(layout) => {
                            let written = written_from(*layout, &shape, dtype, self.redistribute_below);
                            if let Some(run) = written.redistributed {
                                self.redistributions.push(Redistribution {
                                    name: name.clone(),
                                    dtype,
                                    shape: shape.clone(),
                                    from: *layout,
                                    to: written.layout,
                                    run,
                                    run_after: run_bytes(written.layout, &shape, dtype),
                                });
                            }
                            SubjectKind::Laid { dtype, shape, layout: written.layout }
                        }
                    }
                }
            };
            self.subjects.push(Subject { name: name.clone(), section: leaf.section, kind });
        }
        self.digests = self.digests(context);
        Ok(())
    }

    fn derivable(&self) -> Option<Fingerprint> {
        self.digests.map(|digests| digests.whole)
    }

    fn derived_plan(&mut self) -> Result<(SavePlan, Metadata), PlanError> {
        let context = self.context.ok_or(PlanError::NotConfigured)?;
        if let (Some(digests), Some((known, plan, metadata))) = (self.digests, &self.last)
            && digests.plan == *known
        {
            let mut plan = plan.clone();
            self.renew_digests(&mut plan.items);
            return Ok((plan, metadata.clone()));
        }
        let (items, _) = derive(&self.subjects, &mut self.tiles, context.rank, context.world)?;
        let plan = SavePlan { redistributions: self.redistributions.clone(), items, ..SavePlan::default() };
        let metadata = self.metadata();
        if let Some(digests) = self.digests {
            self.last = Some((digests.plan, plan.clone(), metadata.clone()));
        }
        Ok((plan, metadata))
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        let context = self.context.ok_or(PlanError::NotConfigured)?;
        let mut items = Vec::new();
        for subject in &self.subjects {
            let region = match &subject.kind {
                SubjectKind::Bytes { .. } => Region::whole(&Shape::default()),
                SubjectKind::Boxed { shape, regions, .. } => {
                    items.extend(regions.iter().map(|region| subject.item(region.clone())));
                    // A tensor without elements has no holder, and is saved nevertheless.
                    if regions.is_empty() && shape.volume() == 0 {
                        items.push(subject.item(Region::whole(shape)));
                    }
                    continue;
                }
                SubjectKind::Laid { layout, .. } if layout.mesh().position(context.rank).is_err() => continue,
                SubjectKind::Laid { layout, .. } if layout.pending().next().is_some() => {
                    let (name, layout) = (subject.name.clone(), layout.to_string());
                    return Err(PlanError::Pending { name, layout });
                }
                SubjectKind::Laid { layout, shape, .. } => layout
                    .region_of(shape, context.rank)
                    .map_err(|problem| PlanError::Layout { name: subject.name.clone(), problem })?,
            };
            items.push(subject.item(region));
        }
        Ok(SavePlan { redistributions: self.redistributions.clone(), items, ..SavePlan::default() })
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        gather::global_plan(plans)
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        let missing = || PlanError::NoSuchItem { name: item.index.name.clone() };
        let leaf = state.leaves().get(&item.index.name).ok_or_else(missing)?;
        match (&leaf.value, &item.data) {
            (LeafValue::Tensor(tensor), WriteData::Tensor { region, .. }) => {
                let rank = self.context.ok_or(PlanError::NotConfigured)?.rank;
                part_of(&item.index.name, tensor, region, rank)
            }
            (LeafValue::Bytes(bytes), WriteData::Bytes { .. }) => Ok(bytes.reborrow()),
            _ => Err(missing()),
        }
    }
}

/// The bytes of a region that a rank holds: its shard, or a copy of a part of it
/// for planners that split shards.
fn part_of<'s>(
    name: &str,
    tensor: &'s LocalTensor<'_>,
    wanted: &Region,
    rank: usize,
) -> Result<Bytes<'s>, PlanError> {
    if let Sharding::Parts(parts) = &tensor.spec.sharding {
        return bytes_of_part(name, tensor, parts, wanted);
    }
    let held = tensor.spec.region(rank);
    let held = held.map_err(|problem| PlanError::Layout { name: name.to_owned(), problem })?;
    let held = held.ok_or_else(|| PlanError::NoSuchItem { name: name.to_owned() })?;
    if held == *wanted {
        return Ok(tensor.bytes.reborrow());
    }
    let runs = wanted.relative_to(&held).and_then(|part| part.runs(&held.shape()).ok());
    let not_held = || PlanError::NotHeld { name: name.to_owned(), rank, wanted: wanted.clone(), held };
    copy_runs(&tensor.bytes, runs.ok_or_else(not_held)?, tensor.spec.dtype.size())
}

/// The bytes of a region that lies inside of one part.
fn bytes_of_part<'s>(
    name: &str,
    tensor: &'s LocalTensor<'_>,
    parts: &Parts,
    wanted: &Region,
) -> Result<Bytes<'s>, PlanError> {
    let width = tensor.spec.dtype.size();
    let inside = parts.iter().find_map(|part| Some((part, wanted.relative_to(&part.whole)?)));
    let local = inside.and_then(|(part, wanted)| {
        let start: Vec<usize> = wanted.start().iter().zip(part.local.start()).map(|(a, b)| a + b).collect();
        Region::new(&start, wanted.size()).ok()
    });
    let runs = local.and_then(|local| Some(local.runs(parts.local_shape()).ok()?.collect::<Vec<_>>()));
    match runs.ok_or_else(|| PlanError::NoSuchItem { name: name.to_owned() })?.as_slice() {
        [run] => Ok(tensor.bytes.part(run.start * width, run.len() * width)),
        runs => copy_runs(&tensor.bytes, runs.iter().cloned(), width),
    }
}

/// Copies runs of elements one after the other.
fn copy_runs<'s>(
    from: &Bytes<'_>,
    runs: impl Iterator<Item = std::ops::Range<usize>>,
    width: usize,
) -> Result<Bytes<'s>, PlanError> {
    let mut bytes = Vec::new();
    for run in runs {
        let start = bytes.len();
        bytes.resize(start + run.len() * width, 0);
        from.read(run.start * width, &mut bytes[start..])?;
    }
    Ok(Bytes::Owned(bytes))
}

/// The layout that a tensor is written from.
struct Written {
    layout: Layout,
    /// The original run length, if the tensor is redistributed.
    redistributed: Option<u64>,
}

/// Moves shards of inner dims to the first one if the runs would be too short,
/// so that each rank holds whole rows.
fn written_from(layout: Layout, shape: &Shape, dtype: DType, below: u64) -> Written {
    let as_is = Written { layout, redistributed: None };
    let run = run_bytes(layout, shape, dtype);
    if run >= below || layout.pending().next().is_some() {
        return as_is;
    }
    let to_rows = |placement: &Placement| match placement {
        Placement::Shard(_) => Placement::Shard(0),
        other => *other,
    };
    let placements: Vec<Placement> = layout.placements().iter().map(to_rows).collect();
    match Layout::new(layout.mesh(), &placements) {
        Ok(rows) if run_bytes(rows, shape, dtype) >= run.saturating_mul(4) => {
            Written { layout: rows, redistributed: Some(run) }
        }
        _ => as_is,
    }
}

/// Bytes of the first run of a rank's shard in the whole tensor.
fn run_bytes(layout: Layout, shape: &Shape, dtype: DType) -> u64 {
    let first = layout.mesh().ranks().next().unwrap_or(0);
    let region = layout.region_of(shape, first);
    let run = region.ok().and_then(|region| region.runs(shape).ok()?.next());
    run.map_or(u64::MAX, |run| (run.len() * dtype.size()) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::data::PlanData;
    use super::*;

    fn planned(planner: &mut StandardSavePlanner, step: u8, rows: usize) -> (SavePlan, Metadata) {
        let mesh = weightloom_layout::Mesh::new(&[("a", 2)]).unwrap();
        let layout = Layout::new(mesh, &[Placement::Shard(0)]).unwrap();
        let spec = crate::state::TensorSpec {
            dtype: DType::U8,
            shape: Shape::new(&[2 * rows]).unwrap(),
            sharding: Sharding::Layout(layout),
        };
        let mut state = State::new();
        state.model("w", LocalTensor { spec, bytes: vec![step; rows].into() });
        state.bytes("step", vec![step]);
        planner.configure(&state, PlanContext { rank: 0, world: 2 }).unwrap();
        planner.derived_plan().unwrap()
    }

    #[test]
    fn a_derived_plan_is_kept_while_only_contents_change() {
        let mut planner = StandardSavePlanner::new();
        planned(&mut planner, 1, 4);
        // A mark that only a kept plan has.
        let mark = PlanData::new("kept").unwrap();
        planner.last.as_mut().unwrap().1.planner_data = Some(mark.clone());
        let (kept, _) = planned(&mut planner, 2, 4);
        assert_eq!(kept.planner_data, Some(mark));
        let (new, _) = planned(&mut planner, 2, 5);
        assert_eq!(new.planner_data, None);
        let (fresh, _) = planned(&mut StandardSavePlanner::new(), 2, 4);
        assert_eq!(kept.items, fresh.items, "the digest of `step` is the new one");
    }
}
