//! Planning of loads.

use std::collections::BTreeMap;

use weightloom_errors::{name_list, nearest};
use weightloom_layout::{DType, LayoutError, Region, Shape};

use super::items::{LoadPlan, MetadataIndex, ReadItem};
use super::save::{PlanContext, PlanError};
use crate::index::Index;
use crate::state::{Sharding, TensorSpec};

/// Decides what each rank reads, and into which memory. The [module](super)
/// documents the order of calls.
pub trait LoadPlanner<'a> {
    /// Inspects the checkpoint. Every rank.
    fn configure(&mut self, index: &Index, context: PlanContext) -> Result<(), LoadPlanError>;

    /// What this rank reads. Every rank.
    fn local_plan(&mut self, index: &Index) -> Result<LoadPlan, LoadPlanError>;

    /// Whether [`global_plan`](Self::global_plan) sees the plans of all ranks.
    /// Must be the same on every rank.
    fn needs_global_plan(&self) -> bool {
        false
    }

    /// Changes the plans of all ranks. Every rank, with the same result.
    fn global_plan(&mut self, plans: Vec<LoadPlan>) -> Result<Vec<LoadPlan>, LoadPlanError> {
        Ok(plans)
    }

    /// Makes last changes to this rank's plan. Every rank.
    fn finalize(&mut self, plan: LoadPlan) -> Result<LoadPlan, LoadPlanError> {
        Ok(plan)
    }

    /// The memory of an item's destination, and the region of the stored tensor
    /// that fills it. Called once per destination, however many items it has;
    /// all of them must come from one stored tensor.
    fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError>;

    /// Receives the filled destination.
    fn apply_tensor(&mut self, item: &ReadItem, filled: Destination<'a>) -> Result<(), LoadPlanError>;

    /// Receives the bytes of an entry.
    fn apply_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), LoadPlanError>;
}

/// Memory for a region of a stored tensor.
#[derive(Debug)]
pub struct Destination<'a> {
    /// The region of the stored tensor.
    pub region: Region,
    /// The dtype to load it as.
    pub dtype: DType,
    /// The memory, row-major.
    pub bytes: &'a mut [u8],
}

/// The state that one rank loads into.
#[derive(Debug, Default)]
pub struct LoadState<'a> {
    slots: BTreeMap<String, Slot<'a>>,
}

/// An entry to load.
#[derive(Debug)]
pub enum Slot<'a> {
    /// This rank's shard of a tensor.
    Tensor {
        /// The whole tensor and its sharding.
        spec: TensorSpec,
        /// The memory for the shard.
        into: &'a mut [u8],
    },
    /// Bytes.
    Bytes(&'a mut Vec<u8>),
}

impl<'a> LoadState<'a> {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds this rank's shard of a tensor.
    pub fn tensor(&mut self, name: impl Into<String>, spec: TensorSpec, into: &'a mut [u8]) -> &mut Self {
        self.slots.insert(name.into(), Slot::Tensor { spec, into });
        self
    }

    /// Adds an entry of bytes.
    pub fn bytes(&mut self, name: impl Into<String>, into: &'a mut Vec<u8>) -> &mut Self {
        self.slots.insert(name.into(), Slot::Bytes(into));
        self
    }

    /// The entries, by name.
    pub fn slots(&self) -> &BTreeMap<String, Slot<'a>> {
        &self.slots
    }
}

/// What to do about entries of the state that the checkpoint lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKeys {
    /// Fail.
    #[default]
    Error,
    /// Keep the destination unchanged.
    Keep,
}

/// What to do about entries of the checkpoint that the state lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnexpectedKeys {
    /// Fail.
    #[default]
    Error,
    /// Ignore them.
    Ignore,
}

/// A name without a counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmatchedKey {
    /// The name.
    pub name: String,
    /// A similar name on the other side.
    pub near: Option<String>,
}

/// A tensor whose shape differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// Its name.
    pub name: String,
    /// The shape in the state.
    pub wanted: Shape,
    /// The shape in the checkpoint.
    pub found: Shape,
}

/// Differences between a checkpoint and a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateMismatch {
    /// In the state only.
    pub missing: Vec<UnmatchedKey>,
    /// In the checkpoint only.
    pub unexpected: Vec<UnmatchedKey>,
    /// With another shape.
    pub shapes: Vec<ShapeMismatch>,
}

impl StateMismatch {
    fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.shapes.is_empty()
    }
}

impl std::fmt::Display for StateMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stray = |stray: &UnmatchedKey| match &stray.near {
            Some(near) => format!("\n    {} (did you mean `{near}`?)", stray.name),
            None => format!("\n    {}", stray.name),
        };
        let list = |names: &[UnmatchedKey]| names.iter().map(stray).collect::<String>();
        if !self.missing.is_empty() {
            write!(f, "\n  {} missing from the checkpoint:{}", self.missing.len(), list(&self.missing))?;
        }
        if !self.unexpected.is_empty() {
            let count = self.unexpected.len();
            write!(f, "\n  {count} unexpected in the checkpoint:{}", list(&self.unexpected))?;
        }
        if !self.shapes.is_empty() {
            write!(f, "\n  {} with another shape:", self.shapes.len())?;
            for ShapeMismatch { name, wanted, found } in &self.shapes {
                write!(f, "\n    {name}: {wanted} expected, {found} in the checkpoint")?;
            }
        }
        Ok(())
    }
}

/// Why a load cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LoadPlanError {
    #[error("the checkpoint does not match the state:{0}")]
    StateMismatch(Box<StateMismatch>),
    #[error("cannot lay out `{name}`: {problem}")]
    Layout { name: String, problem: LayoutError },
    #[error("cannot load `{name}` into {layout}: its values would be partial sums")]
    Pending { name: String, layout: String },
    #[error("cannot load `{name}` from two tensors, `{first}` and `{second}`")]
    TwoSources { name: String, first: String, second: String },
    #[error("rank {rank} asks for `{name}`, but is outside its mesh")]
    NotHeld { name: String, rank: usize },
    #[error("cannot load `{name}`: the plan names it, but it does not exist")]
    NoSuchItem { name: String },
    #[error("the global plan has plans for {found} of {expected} ranks; {} missing", missing_ranks(*found, *expected))]
    PlanCount { expected: usize, found: usize },
    #[error("no rank's plan loads {}, which the local plans load", name_list(names, 8))]
    Dropped { names: Vec<String> },
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// The ranks without a plan, in words.
fn missing_ranks(found: usize, expected: usize) -> String {
    match expected.saturating_sub(found) {
        0 => "none is".to_owned(),
        1 => format!("rank {found} is"),
        _ => format!("ranks {found} to {} are", expected - 1),
    }
}

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
            let region = match wanted(name, spec, context.rank) {
                // A rank outside the mesh may list the tensor with empty memory.
                Err(LoadPlanError::NotHeld { .. }) if into.is_empty() => continue,
                region => region?,
            };
            for (ordinal, tile) in entry.tiles.iter().enumerate() {
                let Some(part) = region.intersect(&tile.region).filter(|part| !part.is_empty()) else {
                    continue;
                };
                let from = |outer: &Region| -> Vec<usize> {
                    part.start().iter().zip(outer.start()).map(|(a, b)| a - b).collect()
                };
                plan.tensors.push(ReadItem {
                    destination: MetadataIndex::part(name, &region),
                    destination_offsets: from(&region),
                    storage: MetadataIndex {
                        name: name.clone(),
                        offset: Some(tile.region.start().to_vec()),
                        ordinal: Some(ordinal),
                    },
                    storage_offsets: from(&tile.region),
                    lengths: part.size().to_vec(),
                });
            }
        }
        Ok(plan)
    }

    fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError> {
        let name = &item.destination.name;
        let rank = self.context.ok_or(PlanError::NotConfigured)?.rank;
        match self.state.slots.remove(name) {
            Some(Slot::Tensor { spec, into }) => {
                Ok(Destination { region: wanted(name, &spec, rank)?, dtype: spec.dtype, bytes: into })
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
