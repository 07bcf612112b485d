//! The cheapest way from one layout to another.
//!
//! A plan is a list of [`Stage`]s. Within one mesh each stage is a local slice
//! or one collective along one mesh axis, and changes that axis's placement
//! only. Between meshes the data moves in one [`Exchange`].
//!
//! # What is counted
//!
//! A stage costs the bytes that all ranks together receive, at the [`Prices`]
//! given. Because shards
//! tile the tensor however uneven they are, the elements held by all ranks of
//! a mesh of `w` ranks sum to exactly `volume × w / (product of the sharding
//! axes)`; gathers cost the growth of that sum and reduce-scatters its
//! shrinkage, with no rounding. Only all-to-all is priced as if chunks were
//! even. Ties go to the plan with fewer collectives.

mod greedy;
mod search;

use std::fmt;

use crate::dtype::DType;
use crate::exchange::Exchange;
use crate::layout::Placements;
use crate::layout::{Layout, LayoutError, chunk};
use crate::mesh::MAX_AXES;
use crate::placement::{Placement, ReduceOp};
use crate::shape::Shape;
use weightloom_errors::Hint;

/// One move of data, or of what ranks claim about it. Axes and dims are given
/// by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Each rank keeps its chunk of a dim it held whole. Nothing moves.
    Slice {
        /// The mesh axis.
        axis: usize,
        /// The dim that it now splits, after all axes that split it already.
        dim: usize,
    },
    /// Ranks along an axis share their chunks of a dim.
    AllGather {
        /// The mesh axis, the last to split the dim.
        axis: usize,
        /// The dim.
        dim: usize,
    },
    /// Ranks along an axis trade chunks of one dim for chunks of another.
    AllToAll {
        /// The mesh axis, the last to split `from`.
        axis: usize,
        /// The dim it splits before.
        from: usize,
        /// The dim it splits after.
        to: usize,
    },
    /// Ranks along an axis combine pending values, each keeping one chunk.
    ReduceScatter {
        /// The mesh axis.
        axis: usize,
        /// How values combine.
        op: ReduceOp,
        /// The dim it now splits.
        dim: usize,
    },
    /// Ranks along an axis combine pending values, each keeping all.
    AllReduce {
        /// The mesh axis.
        axis: usize,
        /// How values combine.
        op: ReduceOp,
    },
    /// Replicated values become pending ones that combine to the same: the
    /// first rank along the axis keeps them and the others take the neutral
    /// element, or all keep them where the operation allows. Nothing moves.
    Seed {
        /// The mesh axis.
        axis: usize,
        /// How values will combine.
        op: ReduceOp,
    },
    /// Every rank of the target mesh receives what it lacks from the ranks of
    /// the source mesh; see [`Exchange`].
    Exchange,
}

impl Step {
    /// Whether this is a collective rather than something each rank does alone.
    pub fn is_collective(self) -> bool {
        !matches!(self, Self::Slice { .. } | Self::Seed { .. })
    }

    /// The mesh axis along which the step works, unless it spans meshes.
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

    /// The name, as in `all-gather`.
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

/// One step of a plan, with the layouts it leads between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// What is done.
    pub step: Step,
    /// The layout before.
    pub before: Layout,
    /// The layout after.
    pub after: Layout,
}

impl Stage {
    /// Whether ranks must communicate: along an axis of one rank, a collective
    /// is only a change of name.
    pub fn communicates(&self) -> bool {
        self.step.is_collective()
            && self.step.axis().is_none_or(|axis| self.before.mesh().axis_size(axis) > 1)
    }

    /// Elements that `rank` receives from others.
    ///
    /// Reductions count as a direct exchange does: each rank receives every
    /// other rank's values for the part it combines, and for an all-reduce then
    /// the combined parts of the others.
    pub fn received(&self, shape: &Shape, rank: usize) -> Result<usize, LayoutError> {
        let Some(axis) = self.step.axis() else {
            let exchange = Exchange::new(self.before, self.after, shape)?;
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
                let (_, combined) = chunk(after.volume(), ways, index);
                (ways - 1) * combined + (after.volume() - combined)
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

/// What moving data costs, in units of one byte received by one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Bytes per rank that could be moved in the time it takes to start one
    /// collective. With 0, fewest bytes win and the number of collectives only
    /// breaks ties.
    pub bytes_per_collective: u64,
    /// What a byte costs along each mesh axis, relative to the others. Raise
    /// it for axes whose links are slow: the planner then takes a detour over
    /// the fast ones where that is cheaper.
    pub axis_weights: [u32; MAX_AXES],
}

impl Prices {
    /// Nothing counts but bytes, which cost the same along every axis.
    pub const BYTES: Self = Self { bytes_per_collective: 0, axis_weights: [1; MAX_AXES] };
}

/// All links alike, and 64 KiB to start a collective: what 10 GB/s moves in
/// the several microseconds that a start takes on common networks.
impl Default for Prices {
    fn default() -> Self {
        Self { bytes_per_collective: 64 << 10, ..Self::BYTES }
    }
}

/// A sequence of stages from one layout to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    source: Layout,
    target: Layout,
    shape: Shape,
    dtype: DType,
    stages: Vec<Stage>,
    optimal: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A layout does not fit the tensor.
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
    /// The layout it starts from.
    pub fn source(&self) -> Layout {
        self.source
    }

    /// The layout it leads to.
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

    /// Whether no other sequence of steps is cheaper, with all-to-all priced for
    /// even chunks. Moves between meshes are not searched, and on meshes of
    /// seven and more axes a search may be cut short.
    pub fn is_optimal(&self) -> bool {
        self.optimal
    }

    /// How many stages communicate.
    pub fn collectives(&self) -> usize {
        self.stages.iter().filter(|stage| stage.communicates()).count()
    }

    /// Bytes that one rank receives from others over the whole plan. A rank
    /// that is in neither mesh of a stage receives nothing there.
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
        debug_assert_eq!(before, target, "a plan ends where it was asked to");
        Ok(Self { source, target, shape: shape.clone(), dtype, stages, optimal: false })
    }
}

/// Finds the cheapest plan from one layout of a tensor to another.
///
/// Between meshes, what is pending is combined first and the rest moves in one
/// exchange, in which each rank receives only what it lacks.
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

/// Plans without weighing costs, in the fixed order that other systems use:
/// first every pending reduction, then one dim after the other. Kept to
/// measure [`plan`] against.
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

/// Pending values are combined where they are, scattered over the longest dim
/// so that nothing is combined or sent twice; then the data moves once.
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
