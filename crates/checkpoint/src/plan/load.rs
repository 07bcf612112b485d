//! Planning of loads.

use std::collections::BTreeMap;

use weightloom_layout::{DType, LayoutError, Shape};

use super::items::{LoadPlan, ReadItem};
use super::save::{PlanContext, PlanError};
use crate::index::Index;
use crate::state::{Sharding, TensorSpec};
use crate::tree::{AmbiguousPath, Tree, flatten_leaves};

/// Decides what each rank reads, and into which memory. The [module](super)
/// documents the order of calls and has an example.
///
/// A load trusts no planner. It fails with a
/// [`PlannerError`](super::PlannerError) on every rank if a planner panics,
/// returns too few or too many plans, leaves out a destination, reads what the
/// checkpoint lacks, or does not fill every element of a destination exactly
/// once.
pub trait LoadPlanner<'a> {
    /// Its name, for errors and registries.
    fn name(&self) -> &str;

    /// Inspects the checkpoint. Every rank.
    fn configure(&mut self, index: &Index, context: PlanContext) -> Result<(), LoadPlanError>;

    /// What this rank reads. Every rank.
    fn local_plan(&mut self, index: &Index) -> Result<LoadPlan, LoadPlanError>;

    /// Whether [`global_plan`](Self::global_plan) sees the plans of all ranks.
    /// It does if one rank asks for it.
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

    /// The names that this rank's plan must fill. A plan that leaves one out is
    /// refused before anything is read.
    fn destinations(&self, index: &Index) -> Vec<String> {
        let _ = index;
        Vec::new()
    }

    /// The memory of an item's destination. Called once per destination, with
    /// its first item; all items of the destination fill it together.
    fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError>;

    /// Receives the filled destination.
    fn apply_tensor(&mut self, item: &ReadItem, filled: Destination<'a>) -> Result<(), LoadPlanError>;

    /// Receives the bytes of an entry.
    fn apply_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), LoadPlanError>;
}

/// Memory to load into.
#[derive(Debug)]
pub struct Destination<'a> {
    /// Its shape. Read items have offsets in it.
    pub shape: Shape,
    /// The dtype to load it as.
    pub dtype: DType,
    /// The memory, row-major.
    pub bytes: &'a mut [u8],
}

/// The state that one rank loads into.
#[derive(Debug, Default)]
pub struct LoadState<'a> {
    pub(super) slots: BTreeMap<String, Slot<'a>>,
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

    /// Adds nested entries under the names that [`flatten`](crate::flatten)
    /// gives them.
    pub fn tree(&mut self, tree: Tree<Slot<'a>>) -> Result<&mut Self, AmbiguousPath> {
        let (slots, _) = flatten_leaves(tree, |_| None)?;
        self.slots.extend(slots);
        Ok(self)
    }

    /// Whether a tensor is held in several parts.
    pub(crate) fn has_parts(&self) -> bool {
        let is_parted = |slot: &Slot<'a>| match slot {
            Slot::Tensor { spec, .. } => matches!(spec.sharding, Sharding::Parts(_)),
            Slot::Bytes(_) => false,
        };
        self.slots.values().any(is_parted)
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
    pub(super) fn is_empty(&self) -> bool {
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
    #[error("rank {rank} asks for `{name}`, but is outside its mesh")]
    NotHeld { name: String, rank: usize },
    #[error("cannot load `{name}`: the plan names it, but it does not exist")]
    NoSuchItem { name: String },
    #[error(transparent)]
    Plan(#[from] PlanError),
}
