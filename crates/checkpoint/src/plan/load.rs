//! Planning a load.

use std::collections::BTreeMap;

use weightloom_errors::{name_list, nearest};
use weightloom_layout::{DType, LayoutError, Region, Shape};

use super::items::{LoadPlan, MetadataIndex, ReadItem};
use super::save::{PlanContext, PlanError};
use crate::index::Index;
use crate::state::{Sharding, TensorSpec};

/// Decides what each rank reads and where it goes. The steps are told in the
/// module's documentation.
pub trait LoadPlanner<'a> {
    /// Looks at the checkpoint. Every rank.
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

    /// A last look at this rank's plan. Every rank.
    fn finalize(&mut self, plan: LoadPlan) -> Result<LoadPlan, LoadPlanError> {
        Ok(plan)
    }

    /// Where the elements of an item's destination go, and which part of the
    /// stored tensor they are. Called once for each destination, however many
    /// items it has; all of them must come from one stored tensor.
    fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError>;

    /// Takes the destination back, filled.
    fn apply_tensor(&mut self, item: &ReadItem, filled: Destination<'a>) -> Result<(), LoadPlanError>;

    /// Takes bytes.
    fn apply_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), LoadPlanError>;
}

/// Where elements go.
#[derive(Debug)]
pub struct Destination<'a> {
    /// Which part of the stored tensor.
    pub region: Region,
    /// As which type.
    pub dtype: DType,
    /// The memory, row-major.
    pub bytes: &'a mut [u8],
}

/// Everything that one rank wants from a checkpoint.
#[derive(Debug, Default)]
pub struct LoadState<'a> {
    slots: BTreeMap<String, Slot<'a>>,
}

/// One thing that is wanted.
#[derive(Debug)]
pub enum Slot<'a> {
    /// This rank's part of a tensor.
    Tensor {
        /// What the whole is, and which part this is.
        spec: TensorSpec,
        /// Where its elements go.
        into: &'a mut [u8],
    },
    /// Bytes.
    Bytes(&'a mut Vec<u8>),
}

impl<'a> LoadState<'a> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for this rank's part of a tensor.
    pub fn tensor(&mut self, name: impl Into<String>, spec: TensorSpec, into: &'a mut [u8]) -> &mut Self {
        self.slots.insert(name.into(), Slot::Tensor { spec, into });
        self
    }

    /// Asks for bytes.
    pub fn bytes(&mut self, name: impl Into<String>, into: &'a mut Vec<u8>) -> &mut Self {
        self.slots.insert(name.into(), Slot::Bytes(into));
        self
    }

    /// What is wanted, by name.
    pub fn slots(&self) -> &BTreeMap<String, Slot<'a>> {
        &self.slots
    }
}

/// What to do about names that are wanted but not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKeys {
    /// Refuse to load.
    #[default]
    Error,
    /// Leave the destination as it is.
    Keep,
}

/// What to do about names that are there but not wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnexpectedKeys {
    /// Refuse to load.
    #[default]
    Error,
    /// Leave them where they are.
    Ignore,
}

/// What a name that fits nothing might have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmatchedKey {
    /// The name.
    pub name: String,
    /// A name of the other side that is close.
    pub near: Option<String>,
}

/// A tensor that has another shape than it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// Its name.
    pub name: String,
    /// What is wanted.
    pub wanted: Shape,
    /// What is there.
    pub found: Shape,
}

/// Everything about a checkpoint that does not fit what is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateMismatch {
    /// Wanted, but not there.
    pub missing: Vec<UnmatchedKey>,
    /// There, but not wanted.
    pub unexpected: Vec<UnmatchedKey>,
    /// There with another shape.
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
            Some(near) => format!("\n    {} (near `{near}`)", stray.name),
            None => format!("\n    {}", stray.name),
        };
        let list = |names: &[UnmatchedKey]| names.iter().map(stray).collect::<String>();
        if !self.missing.is_empty() {
            write!(
                f,
                "\n  {} wanted, but not in the checkpoint:{}",
                self.missing.len(),
                list(&self.missing)
            )?;
        }
        if !self.unexpected.is_empty() {
            let count = self.unexpected.len();
            write!(f, "\n  {count} in the checkpoint, but not wanted:{}", list(&self.unexpected))?;
        }
        if !self.shapes.is_empty() {
            write!(f, "\n  {} of another shape:", self.shapes.len())?;
            for ShapeMismatch { name, wanted, found } in &self.shapes {
                write!(f, "\n    {name}: {wanted} wanted, {found} in the checkpoint")?;
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
    /// The checkpoint does not fit.
    #[error("the checkpoint does not fit:{0}")]
    StateMismatch(Box<StateMismatch>),
    /// A layout does not fit its tensor.
    #[error("`{name}` cannot be laid out: {source}")]
    Layout { name: String, source: LayoutError },
    /// A layout in which values are still to be combined.
    #[error("`{name}` cannot be loaded into {layout}, where values are still to be combined")]
    Pending { name: String, layout: String },
    /// The items of one destination come from two tensors.
    #[error("`{name}` would be filled from `{first}` and `{second}`")]
    TwoSources { name: String, first: String, second: String },
    /// A rank has no part of what it asks for.
    #[error("rank {rank} asks for `{name}`, of which it holds nothing")]
    NotHeld { name: String, rank: usize },
    #[error("cannot load `{name}`: the plan names it, but it does not exist")]
    NoSuchItem { name: String },
    #[error("the global plan has plans for {found} of {expected} ranks; {} missing", missing_ranks(*found, *expected))]
    PlanCount { expected: usize, found: usize },
    #[error("no rank's plan loads {}, which the local plans load", name_list(names, 8))]
    Dropped { names: Vec<String> },
    /// Shared with saving.
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

/// The planner that is used unless another is given.
#[derive(Debug, Default)]
pub struct StandardLoadPlanner<'a> {
    /// What to do about missing names.
    pub missing: MissingKeys,
    /// What to do about unexpected names.
    pub unexpected: UnexpectedKeys,
    state: LoadState<'a>,
    context: Option<PlanContext>,
}

impl<'a> StandardLoadPlanner<'a> {
    /// Plans for a state, strictly.
    pub fn new(state: LoadState<'a>) -> Self {
        Self { state, ..Self::default() }
    }

    fn misfit(&self, index: &Index) -> StateMismatch {
        let mut misfit = StateMismatch::default();
        let near =
            |name: &str, there: &mut dyn Iterator<Item = &str>| nearest(name, there).map(str::to_owned);
        for (name, slot) in &self.state.slots {
            let found = match slot {
                Slot::Bytes(_) => index.bytes_at(name).is_some(),
                Slot::Tensor { spec, .. } => match index.tensors().get(name) {
                    Some(entry) => {
                        if entry.shape != spec.shape {
                            misfit.shapes.push(ShapeMismatch {
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
                misfit.missing.push(UnmatchedKey { name: name.clone(), near });
            }
        }
        if self.unexpected == UnexpectedKeys::Error {
            for name in index.tensors().keys().filter(|name| !self.state.slots.contains_key(*name)) {
                let near = near(name, &mut self.state.slots.keys().map(String::as_str));
                misfit.unexpected.push(UnmatchedKey { name: name.clone(), near });
            }
        }
        misfit
    }
}

impl<'a> LoadPlanner<'a> for StandardLoadPlanner<'a> {
    fn configure(&mut self, index: &Index, context: PlanContext) -> Result<(), LoadPlanError> {
        self.context = Some(context);
        let misfit = self.misfit(index);
        if misfit.is_empty() { Ok(()) } else { Err(LoadPlanError::StateMismatch(Box::new(misfit))) }
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
                // A rank outside of the mesh may list what it holds nothing of.
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
        // The destination was the caller's own memory.
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
        spec.region(rank).map_err(|source| LoadPlanError::Layout { name: name.to_owned(), source })?;
    region.ok_or_else(|| LoadPlanError::NotHeld { name: name.to_owned(), rank })
}
