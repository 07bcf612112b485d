//! Planning of saves.

use std::fmt;

use weightloom_errors::Hint;
use weightloom_gang::{Gang, GangError, GangExt};
use weightloom_layout::{DType, Layout, LayoutError, Placement, Region, Shape, TilingError};

use super::balance::WriteLoad;
use super::derive::{TileCache, derive};
use super::gather;
use super::items::{Metadata, Redistribution, SavePlan, TensorMetadata, WriteData, WriteItem};
use crate::error::CheckpointError;
use crate::fingerprint::{Fingerprint, Mixer};
use crate::state::{Bytes, LeafValue, Section, Sharding, State};

/// The rank that plans, and the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanContext {
    /// The rank.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
}

/// Decides what each rank writes. The [module](super) documents the order of
/// calls.
pub trait SavePlanner: Send {
    /// Inspects the state. Every rank.
    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError>;

    /// A digest of everything that the plan depends on, if every rank can derive
    /// it alone; `None` if the ranks must gather their plans. Every rank.
    fn derivable(&self) -> Option<Fingerprint> {
        None
    }

    /// This rank's plan, derived alone. Called if all ranks returned the same
    /// digest.
    fn derived_plan(&mut self) -> Result<(SavePlan, Metadata), PlanError>;

    /// Everything that this rank holds, replicas included. Every rank.
    fn local_plan(&mut self) -> Result<SavePlan, PlanError>;

    /// The plan of every rank, from the local plans. Every rank, with the same
    /// result.
    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError>;

    /// Makes last changes to this rank's plan. Every rank.
    fn finalize(&mut self, plan: SavePlan) -> Result<SavePlan, PlanError> {
        Ok(plan)
    }

    /// The bytes of an item. Every rank, once for each of its items.
    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError>;
}

/// Why a save cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PlanError {
    #[error("ranks disagree on `{name}`: {}", Versions(versions))]
    Disagreement { name: String, versions: Vec<Version> },
    #[error("cannot assemble `{name}` from the ranks' shards: {problem}")]
    Tiling { name: String, problem: TilingError },
    #[error("cannot save `{name}` in {layout}: its values are partial sums")]
    Pending { name: String, layout: String },
    #[error("cannot lay out `{name}`: {problem}")]
    Layout { name: String, problem: LayoutError },
    #[error("rank {rank} holds {found} bytes of `{name}`, but its shard {region} has {expected}")]
    Length { name: String, rank: usize, region: Region, expected: usize, found: usize },
    #[error("the layout of `{name}` includes rank {rank}, but there are {world} ranks")]
    NoSuchRank { name: String, rank: usize, world: usize },
    #[error("rank {rank} plans another redistribution of `{name}` than the ranks before it")]
    Redistributions { name: String, rank: usize },
    #[error("planned writes to `{file}` overlap at byte {offset}")]
    Overlap { file: String, offset: u64 },
    #[error("the planner has no plan for rank {rank}")]
    NoPlan { rank: usize },
    #[error("cannot save `{name}`: it is planned, but missing from the state")]
    NoSuchItem { name: String },
    #[error("the planner was not configured")]
    NotConfigured,
}

impl Hint for PlanError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Disagreement { .. } => {
                Some("give values that differ between ranks different names, such as `rng.rank3`".to_owned())
            }
            Self::Pending { .. } => Some("redistribute it to a layout without partial sums first".to_owned()),
            Self::NoSuchRank { .. } => Some("save from the ranks that the mesh was made for".to_owned()),
            Self::Layout { problem, .. } => problem.hint(),
            _ => None,
        }
    }
}

/// One version of an entry on which ranks disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its description.
    pub what: String,
    /// The ranks that have it.
    pub ranks: Vec<usize>,
}

struct Versions<'a>(&'a [Version]);

impl fmt::Display for Versions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, version) in self.0.iter().enumerate() {
            let shown: Vec<String> = version.ranks.iter().take(8).map(ToString::to_string).collect();
            let more = match version.ranks.len().saturating_sub(8) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let comma = if number == 0 { "" } else { "; " };
            write!(f, "{comma}{} on rank {}{more}", version.what, shown.join(", "))?;
        }
        Ok(())
    }
}

/// Plans a save with a planner. Every rank of the gang.
pub fn plan_save(
    planner: &mut dyn SavePlanner,
    state: &State<'_>,
    gang: &dyn Gang,
) -> Result<(SavePlan, Metadata), CheckpointError> {
    let context = PlanContext { rank: gang.rank(), world: gang.size() };
    let configured = planner.configure(state, context);
    // A rank that failed still takes part, so that all ranks learn of it.
    let digest = configured.as_ref().ok().and_then(|()| planner.derivable());
    let alone = agree(gang, digest)?;
    crate::collective_result(gang, configured.map_err(CheckpointError::from))?;
    let (plan, metadata) = match alone {
        Agreement::Alone => {
            let derived = planner.derived_plan();
            crate::collective_result(gang, derived.map_err(CheckpointError::from))?
        }
        Agreement::Gather => {
            let local = crate::collective_result(gang, planner.local_plan().map_err(CheckpointError::from))?;
            let all = planner.global_plan(gang.all_gather_objects(&local)?);
            let (mut plans, metadata) = crate::collective_result(gang, all.map_err(CheckpointError::from))?;
            let own = plans.get_mut(gang.rank()).map(std::mem::take);
            let own = own.ok_or(CheckpointError::Plan(PlanError::NoPlan { rank: gang.rank() }));
            (crate::collective_result(gang, own)?, metadata)
        }
    };
    let plan = planner.finalize(plan).map_err(CheckpointError::from);
    Ok((crate::collective_result(gang, plan)?, metadata))
}

enum Agreement {
    Alone,
    Gather,
}

/// Whether all ranks have the same digest.
fn agree(gang: &dyn Gang, digest: Option<Fingerprint>) -> Result<Agreement, GangError> {
    let own = digest.map_or([0; 3], |Fingerprint(digest)| [1, digest as u64, (digest >> 64) as u64]);
    let mut all = vec![0u64; 3 * gang.size()];
    gang.all_gather(&own, &vec![3; gang.size()], &mut all)?;
    let same = own[0] == 1 && all.chunks(3).all(|theirs| theirs == own);
    Ok(if same { Agreement::Alone } else { Agreement::Gather })
}

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
    Boxed { dtype: DType, shape: Shape, region: Region },
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
    digest: Option<Fingerprint>,
    tiles: TileCache,
    last: Option<(Fingerprint, SavePlan, Metadata)>,
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

    /// A digest of everything that the plan depends on; `None` if it depends on
    /// regions that only other ranks know.
    fn digest_of(&self, context: PlanContext) -> Option<Fingerprint> {
        let mut hash = Mixer::new();
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
                    hash.number(digest.0 as u64);
                    hash.number((digest.0 >> 64) as u64);
                }
            }
        }
        // The layout that a tensor is held in may differ from the written one.
        for redistribution in &self.redistributions {
            hash.text(&redistribution.name);
            hash.text(&redistribution.from.to_string());
            hash.text(&redistribution.to.to_string());
        }
        Some(hash.finish())
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
    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.context = Some(context);
        self.subjects.clear();
        self.redistributions.clear();
        for (name, leaf) in state.leaves() {
            let kind = match &leaf.value {
                LeafValue::Bytes(bytes) => {
                    let mut digest = Mixer::new();
                    digest.bytes(bytes);
                    SubjectKind::Bytes { length: bytes.len() as u64, digest: digest.finish() }
                }
                LeafValue::Tensor(tensor) => {
                    let spec = &tensor.spec;
                    let (dtype, shape) = (spec.dtype, spec.shape.clone());
                    let failed = |problem| PlanError::Layout { name: name.clone(), problem };
                    let region = spec.region(context.rank).map_err(failed)?;
                    let volume = region.as_ref().map_or(0, Region::volume);
                    if tensor.bytes.len() != volume * dtype.size() {
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
                            SubjectKind::Boxed { dtype, shape, region: region.clone() }
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
        self.digest = self.digest_of(context);
        Ok(())
    }

    fn derivable(&self) -> Option<Fingerprint> {
        self.digest
    }

    fn derived_plan(&mut self) -> Result<(SavePlan, Metadata), PlanError> {
        let context = self.context.ok_or(PlanError::NotConfigured)?;
        if let (Some(digest), Some((known, plan, metadata))) = (self.digest, &self.last)
            && digest == *known
        {
            return Ok((plan.clone(), metadata.clone()));
        }
        let (items, _) = derive(&self.subjects, &mut self.tiles, context.rank, context.world)?;
        let plan = SavePlan { redistributions: self.redistributions.clone(), items };
        let metadata = self.metadata();
        if let Some(digest) = self.digest {
            self.last = Some((digest, plan.clone(), metadata.clone()));
        }
        Ok((plan, metadata))
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        let context = self.context.ok_or(PlanError::NotConfigured)?;
        let mut items = Vec::new();
        for subject in &self.subjects {
            let region = match &subject.kind {
                SubjectKind::Bytes { .. } => Region::whole(&Shape::default()),
                SubjectKind::Boxed { region, .. } => region.clone(),
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
        Ok(SavePlan { redistributions: self.redistributions.clone(), items })
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        gather::global_plan(plans)
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        let missing = || PlanError::NoSuchItem { name: item.index.name.clone() };
        let leaf = state.leaves().get(&item.index.name).ok_or_else(missing)?;
        match (&leaf.value, &item.data) {
            (LeafValue::Tensor(tensor), WriteData::Tensor { .. }) => Ok(tensor.bytes.reborrow()),
            (LeafValue::Bytes(bytes), WriteData::Bytes { .. }) => Ok(bytes.reborrow()),
            _ => Err(missing()),
        }
    }
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
