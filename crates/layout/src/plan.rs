//! Plans of redistribution: the cheapest collectives between two layouts.
//!
//! A plan is a list of [`Stage`]s. Within one mesh each stage is a local slice
//! or one collective along one mesh axis, and changes that axis's placement
//! only. Between meshes the data moves in one [`MeshExchange`].
//!
//! # Cost
//!
//! A stage costs the bytes that all ranks together receive, at given
//! [`Prices`]. Shards tile the tensor, also uneven ones, so the elements held
//! by all ranks of a mesh of `w` ranks sum to exactly `volume × w / (product of
//! the sharding axes)`. Gathers cost the growth of that sum and reduce-scatters
//! its decrease, without rounding. Only all-to-all is priced as if chunks were
//! even. Ties go to the plan with fewer collectives.

mod greedy;
mod search;

use std::fmt;

use crate::dtype::DType;
use crate::layout::Placements;
use crate::layout::{Layout, LayoutError, chunk};
use crate::mesh::MAX_AXES;
use crate::mesh_exchange::MeshExchange;
use crate::placement::{Placement, ReduceOp};
use crate::shape::Shape;
use weightloom_errors::Hint;

/// One step of a plan. Mesh axes and tensor dims are indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Step {
    /// Each rank keeps its chunk of a dim, which `axis` splits after all axes
    /// that split it already. Local.
    Slice { axis: usize, dim: usize },
    /// Gathers the chunks of a dim along `axis`, the last axis to split it.
    AllGather { axis: usize, dim: usize },
    /// Exchanges chunks of dim `from` for chunks of dim `to` along `axis`, the
    /// last axis to split `from`.
    AllToAll { axis: usize, from: usize, to: usize },
    /// Reduces partial values along `axis`; each rank keeps a chunk of `dim`.
    ReduceScatter { axis: usize, op: ReduceOp, dim: usize },
    /// Reduces partial values along `axis`; each rank keeps all.
    AllReduce { axis: usize, op: ReduceOp },
    /// Turns replicated values into partial ones that reduce to the same: the
    /// first rank along `axis` keeps them and the others take the neutral
    /// element, or all keep them where the reduction allows. Local.
    Seed { axis: usize, op: ReduceOp },
    /// Moves the tensor to another mesh; see [`MeshExchange`].
    Exchange,
}

impl Step {
    /// Whether this is a collective rather than a local step.
    pub fn is_collective(self) -> bool {
        !matches!(self, Self::Slice { .. } | Self::Seed { .. })
    }

    /// The mesh axis of the step, unless it spans meshes.
    pub fn axis(self) -> Option<usize> {
        match self {
            Self::Slice { axis, .. }
            | Self::AllGather { axis, .. }
            | Self::AllToAll { axis, .. }
            | Self::ReduceScatter { axis, .. }
            | Self::AllReduce { axis, .. }
            | Self::Seed { axis, .. } => Some(axis),
            Self::Exchange => None,
        }
    }

    /// The name: `all-gather`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slice { .. } => "slice",
            Self::AllGather { .. } => "all-gather",
            Self::AllToAll { .. } => "all-to-all",
            Self::ReduceScatter { .. } => "reduce-scatter",
            Self::AllReduce { .. } => "all-reduce",
            Self::Seed { .. } => "seed",
            Self::Exchange => "exchange",
        }
    }

    /// The layout after this step within one mesh.
    fn apply(self, before: Layout) -> Result<Layout, LayoutError> {
        let Some(axis) = self.axis() else { return Ok(before) };
        let mut placements = Placements::from_slice(before.placements());
        let mut turns = before.turns().clone();
        turns[axis] = 0;
        placements[axis] = match self {
            Self::Slice { dim, .. } | Self::ReduceScatter { dim, .. } | Self::AllToAll { to: dim, .. } => {
                turns[axis] = before.split_axes(dim).len() as u8;
                Placement::Shard(dim)
            }
            Self::Seed { op, .. } => Placement::Partial(op),
            Self::AllGather { .. } | Self::AllReduce { .. } | Self::Exchange => Placement::Replicate,
        };
        Layout::intern(before.mesh(), &placements, turns)
    }
}

/// A step of a plan, with the layouts before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Stage {
    pub step: Step,
    pub before: Layout,
    pub after: Layout,
}

impl Stage {
    /// Whether ranks communicate. A collective along an axis of one rank does
    /// not.
    pub fn communicates(&self) -> bool {
        self.step.is_collective()
            && self.step.axis().is_none_or(|axis| self.before.mesh().axis_size(axis) > 1)
    }

    /// Elements that `rank` receives from others.
    ///
    /// A reduction counts as a direct exchange: each rank receives the values of
    /// all others for the part that it reduces, and in an all-reduce also the
    /// reduced parts of the others.
    pub fn received(&self, shape: &Shape, rank: usize) -> Result<usize, LayoutError> {
        let Some(axis) = self.step.axis() else {
            let exchange = MeshExchange::new(self.before, self.after, shape)?;
            let transfers = exchange.receives(rank)?;
            return Ok(transfers.iter().filter(|t| t.from != t.to).map(|t| t.region.volume()).sum());
        };
        let before = self.before.region_of(shape, rank)?;
        let after = self.after.region_of(shape, rank)?;
        let ways = self.before.mesh().axis_size(axis);
        Ok(match self.step {
            Step::Slice { .. } | Step::Seed { .. } | Step::Exchange => 0,
            Step::AllGather { .. } | Step::AllToAll { .. } => {
                after.volume() - after.intersect(&before).map_or(0, |kept| kept.volume())
            }
            Step::ReduceScatter { .. } => (ways - 1) * after.volume(),
            Step::AllReduce { .. } => {
                let index = self.before.mesh().coordinate(rank)?[axis];
                let (_, reduced) = chunk(after.volume(), ways, index);
                (ways - 1) * reduced + (after.volume() - reduced)
            }
        })
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.step.name();
        let Some(axis) = self.step.axis() else {
            return write!(f, "{name} {} -> {}", self.before.mesh(), self.after.mesh());
        };
        let axis = self.before.mesh().axis_name(axis);
        match self.step {
            Step::Slice { dim, .. } | Step::AllGather { dim, .. } => {
                write!(f, "{name} dim {dim} over {axis}")
            }
            Step::AllToAll { from, to, .. } => write!(f, "{name} dim {from} -> {to} over {axis}"),
            Step::ReduceScatter { op, dim, .. } => write!(f, "{name}({op}) to dim {dim} over {axis}"),
            Step::AllReduce { op, .. } | Step::Seed { op, .. } => write!(f, "{name}({op}) over {axis}"),
            Step::Exchange => f.write_str(name),
        }
    }
}

/// The cost of communication, in units of one byte received by one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// The latency of a collective, as the bytes that a rank could receive in
    /// that time. With 0, the number of collectives only breaks ties.
    pub bytes_per_collective: u64,
    /// The relative cost of a byte along each mesh axis. Raise it for axes with
    /// slow links: the planner then prefers detours over fast ones.
    pub axis_weights: [u32; MAX_AXES],
}

impl Prices {
    /// Counts only bytes, at the same cost along every axis.
    pub const BYTES: Self = Self { bytes_per_collective: 0, axis_weights: [1; MAX_AXES] };
}

/// Equal links, and a latency of 64 KiB per collective: several microseconds at
/// 10 GB/s, as on common networks.
impl Default for Prices {
    fn default() -> Self {
        Self { bytes_per_collective: 64 << 10, ..Self::BYTES }
    }
}

/// A sequence of stages from one layout of a tensor to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    source: Layout,
    target: Layout,
    shape: Shape,
    dtype: DType,
    stages: Vec<Stage>,
    optimal: bool,
}

/// An error of planning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PlanError {
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

impl Hint for PlanError {
    fn hint(&self) -> Option<String> {
        let Self::Layout(error) = self;
        error.hint()
    }
}

impl Plan {
    /// The layout before the plan.
    pub fn source(&self) -> Layout {
        self.source
    }

    /// The layout after the plan.
    pub fn target(&self) -> Layout {
        self.target
    }

    /// The tensor's global shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The tensor's dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The stages, in order.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Whether the plan is proven to be the cheapest, with all-to-all priced for
    /// even chunks. False for plans between meshes, and if the search was cut
    /// short, which happens on meshes of seven and more axes.
    pub fn is_optimal(&self) -> bool {
        self.optimal
    }

    /// The number of stages that communicate.
    pub fn collectives(&self) -> usize {
        self.stages.iter().filter(|stage| stage.communicates()).count()
    }

    /// Bytes that one rank receives from others over the whole plan.
    pub fn received(&self, rank: usize) -> Result<u64, PlanError> {
        let mut elements = 0;
        for stage in &self.stages {
            if stage.after.mesh().position(rank).is_ok() {
                elements += stage.received(&self.shape, rank)?;
            }
        }
        Ok((elements * self.dtype.size()) as u64)
    }

    fn new(
        source: Layout,
        target: Layout,
        shape: &Shape,
        dtype: DType,
        steps: &[Step],
    ) -> Result<Self, PlanError> {
        let mut stages = Vec::with_capacity(steps.len());
        let mut before = source;
        for &step in steps {
            let after = match step {
                Step::Exchange => without_pending(target)?,
                _ => step.apply(before)?,
            };
            stages.push(Stage { step, before, after });
            before = after;
        }
        debug_assert_eq!(before, target, "a plan ends in its target");
        Ok(Self { source, target, shape: shape.clone(), dtype, stages, optimal: false })
    }
}

/// Finds the cheapest plan from one layout of a tensor to another.
///
/// Between meshes, the plan first reduces partial values and then moves the
/// tensor in one exchange, in which each rank receives only what it lacks.
pub fn plan(
    source: Layout,
    target: Layout,
    shape: &Shape,
    dtype: DType,
    prices: Prices,
) -> Result<Plan, PlanError> {
    source.check_shape(shape)?;
    target.check_shape(shape)?;
    let found = if source.mesh() == target.mesh() {
        search::cheapest(source, target, shape, dtype, prices, greedy::steps(source, target))
    } else {
        search::Found { steps: cross_mesh_steps(source, target, shape), optimal: false }
    };
    Ok(Plan { optimal: found.optimal, ..Plan::new(source, target, shape, dtype, &found.steps)? })
}

/// Plans in the fixed order that other systems use: first every pending
/// reduction, then one dim after the other. A baseline for [`plan`].
pub fn greedy_plan(source: Layout, target: Layout, shape: &Shape, dtype: DType) -> Result<Plan, PlanError> {
    source.check_shape(shape)?;
    target.check_shape(shape)?;
    let steps = if source.mesh() == target.mesh() {
        greedy::steps(source, target)
    } else {
        cross_mesh_steps(source, target, shape)
    };
    Plan::new(source, target, shape, dtype, &steps)
}

/// Reduces partial values within the source mesh, scattered over the longest
/// dim so that no value is reduced or sent twice; then moves the data once.
fn cross_mesh_steps(source: Layout, target: Layout, shape: &Shape) -> Vec<Step> {
    let longest = (0..shape.ndim()).max_by_key(|&dim| shape[dim]);
    let reduce = source.pending().map(|(axis, op)| match longest {
        Some(dim) => Step::ReduceScatter { axis, op, dim },
        None => Step::AllReduce { axis, op },
    });
    let seed = target.pending().map(|(axis, op)| Step::Seed { axis, op });
    reduce.chain([Step::Exchange]).chain(seed).collect()
}

fn without_pending(layout: Layout) -> Result<Layout, LayoutError> {
    let placements: Placements = layout
        .placements()
        .iter()
        .map(|&placement| if placement.pending().is_some() { Placement::Replicate } else { placement })
        .collect();
    Layout::intern(layout.mesh(), &placements, layout.turns().clone())
}
