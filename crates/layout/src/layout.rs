//! Layouts: a mesh and one placement per axis.

use std::fmt;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use crate::intern::Interner;
use crate::mesh::{Coordinate, MAX_AXES, Mesh, MeshError};
use crate::placement::{Placement, ReduceOp};
use crate::region::Region;
use crate::shape::{Dims, MAX_DIMS, Shape};
use weightloom_errors::Hint;

/// One placement per mesh axis.
pub type Placements = SmallVec<[Placement; 4]>;

/// Mesh axes, in the order in which they split a dim.
pub type SplitOrder = SmallVec<[usize; 4]>;

/// The distribution of a tensor: a mesh and one placement per axis.
///
/// A layout has no shape; it applies to every tensor with enough dims. It is
/// immutable and interned: `Copy`, compared by a small number.
///
/// # Several axes on one dim
///
/// Axes that shard the same dim split it one after the other: the first cuts
/// the dim into chunks, the next cuts each chunk, and so on. By default the
/// order is that of the mesh axes. Tensor parallelism followed by FSDP on a
/// `(dp, tp)` mesh splits by `tp` first, which is what torch calls a strided
/// shard; [`with_split_order`](Self::with_split_order) states that order.
///
/// # Uneven sizes
///
/// A dim of size `n` split `k` ways gives chunks of `ceil(n / k)`; the last
/// ones are short or empty. This is PyTorch's rule, so regions agree with
/// torch DTensor.
///
/// ```
/// use weightloom_layout::{Layout, Shape};
///
/// let layout: Layout = "mesh(dp=2,tp=4) [R, S(0)]".parse()?;
/// let shape = Shape::new(&[10, 3])?;
/// assert_eq!(layout.region_of(&shape, 6)?.to_string(), "[6:9, 0:3]");
/// assert_eq!(layout.region_of(&shape, 7)?.to_string(), "[9:10, 0:3]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Layout(&'static LayoutData);

/// The number of a layout in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayoutId(u32);

#[derive(Clone, PartialEq, Eq, Hash)]
struct LayoutKey {
    mesh: Mesh,
    placements: Placements,
    /// For each axis that shards, its position among the axes that shard the
    /// same dim; 0 elsewhere.
    turns: Turns,
}

struct LayoutData {
    id: u32,
    key: LayoutKey,
    splits: Vec<Split>,
    /// One more than the highest dim sharded.
    dims_needed: usize,
}

pub(crate) type Turns = SmallVec<[u8; 8]>;

/// A dim and the axes that split it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Split {
    pub dim: usize,
    pub axes: SplitOrder,
}

/// A rank that holds a part of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Owner {
    pub rank: usize,
    /// The part, in global indices.
    pub region: Region,
}

static LAYOUTS: Interner<LayoutKey, LayoutData> = Interner::new();

/// Placements that do not fit a mesh, or a layout that does not fit a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LayoutError {
    #[error("expected {axes} placements for {mesh}, found {placements}")]
    PlacementCount { mesh: Mesh, axes: usize, placements: usize },
    #[error("axis `{axis}` shards dim {dim}, but a tensor has at most {MAX_DIMS} dims")]
    DimTooHigh { axis: &'static str, dim: usize },
    #[error(
        "axes `{first}` and `{second}` hold pending {first_op} and {second_op}, which give different results in different orders"
    )]
    MixedPartial { first: &'static str, first_op: ReduceOp, second: &'static str, second_op: ReduceOp },
    #[error("dim {dim} is sharded by axes {sharding:?}, but its split order lists {listed:?}")]
    SplitOrder { dim: usize, sharding: Vec<&'static str>, listed: Vec<String> },
    #[error("{layout} shards dim {dim}, but a tensor of shape {shape} has {ndim} dims")]
    MissingDim { layout: Layout, dim: usize, shape: Shape, ndim: usize },
    #[error(transparent)]
    Region(#[from] crate::region::RegionError),
    #[error(transparent)]
    Mesh(#[from] MeshError),
}

impl Hint for LayoutError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::MixedPartial { first, .. } => Some(format!("reduce axis `{first}` first")),
            Self::Mesh(error) => error.hint(),
            _ => None,
        }
    }
}

impl Layout {
    /// Creates a layout from one placement per mesh axis. Axes that shard the
    /// same dim split it in mesh order.
    pub fn new(mesh: Mesh, placements: &[Placement]) -> Result<Self, LayoutError> {
        let turns = mesh_order_turns(placements);
        Self::intern(mesh, placements, turns)
    }

    /// Creates a layout in which the named axes split the listed dims in the
    /// given order. Other dims are split in mesh order.
    pub fn with_split_order(
        mesh: Mesh,
        placements: &[Placement],
        orders: &[(usize, &[&str])],
    ) -> Result<Self, LayoutError> {
        let mut turns = mesh_order_turns(placements);
        for &(dim, names) in orders {
            let listed = names.iter().map(|name| mesh.axis(name)).collect::<Result<Vec<_>, _>>()?;
            let sharding: Vec<usize> = (0..placements.len().min(mesh.ndim()))
                .filter(|&axis| placements[axis] == Placement::Shard(dim))
                .collect();
            let mut sorted = listed.clone();
            sorted.sort_unstable();
            if sorted != sharding {
                return Err(LayoutError::SplitOrder {
                    dim,
                    sharding: sharding.iter().map(|&axis| mesh.axis_name(axis)).collect(),
                    listed: names.iter().map(|&name| name.to_owned()).collect(),
                });
            }
            for (turn, &axis) in listed.iter().enumerate() {
                turns[axis] = turn as u8;
            }
        }
        Self::intern(mesh, placements, turns)
    }

    /// The layout in which every rank holds the whole tensor.
    pub fn replicated(mesh: Mesh) -> Self {
        let placements = Placements::from_elem(Placement::Replicate, mesh.ndim());
        Self::new(mesh, &placements).expect("one Replicate per axis is always a layout")
    }

    /// The layout in which each sharding axis splits its dim at the turn given.
    pub(crate) fn intern(mesh: Mesh, placements: &[Placement], turns: Turns) -> Result<Self, LayoutError> {
        let placements = Placements::from_slice(placements);
        let data = LAYOUTS.intern(LayoutKey { mesh, placements, turns }, LayoutData::new)?;
        Ok(Self(data))
    }

    /// The number of this layout in this process.
    pub fn id(self) -> LayoutId {
        LayoutId(self.0.id)
    }

    /// The mesh.
    pub fn mesh(self) -> Mesh {
        self.0.key.mesh
    }

    /// One placement per mesh axis.
    pub fn placements(self) -> &'static [Placement] {
        &self.0.key.placements
    }

    /// The sharded dims, each with its axes in split order, lowest dim first.
    pub fn splits(self) -> &'static [Split] {
        &self.0.splits
    }

    /// The axes that split one dim, in order.
    pub fn split_axes(self, dim: usize) -> &'static [usize] {
        self.splits().iter().find(|split| split.dim == dim).map_or(&[], |split| &split.axes)
    }

    /// Axes with a pending reduction.
    pub fn pending(self) -> impl Iterator<Item = (usize, ReduceOp)> {
        self.placements().iter().enumerate().filter_map(|(axis, p)| Some((axis, p.pending()?)))
    }

    /// Checks that a tensor of this shape has the dims that are sharded.
    pub fn check_shape(self, shape: &Shape) -> Result<(), LayoutError> {
        if shape.ndim() < self.0.dims_needed {
            return Err(LayoutError::MissingDim {
                layout: self,
                dim: self.0.dims_needed - 1,
                shape: shape.clone(),
                ndim: shape.ndim(),
            });
        }
        Ok(())
    }

    /// The region of the tensor that a rank holds.
    ///
    /// Along a partial axis, ranks hold partial values of the same region.
    pub fn region_of(self, shape: &Shape, rank: usize) -> Result<Region, LayoutError> {
        self.check_shape(shape)?;
        let coordinate = self.mesh().coordinate(rank)?;
        Ok(self.region_at(shape, &coordinate))
    }

    fn region_at(self, shape: &Shape, coordinate: &[usize]) -> Region {
        let mut start = Dims::from_elem(0, shape.ndim());
        let mut size = Dims::from_slice(shape);
        for split in &self.0.splits {
            for &axis in &split.axes {
                let (offset, length) = chunk(size[split.dim], self.mesh().axis_size(axis), coordinate[axis]);
                start[split.dim] += offset;
                size[split.dim] = length;
            }
        }
        Region::from_parts(start, size)
    }

    /// The shape of the tensor that a rank holds.
    pub fn local_shape(self, shape: &Shape, rank: usize) -> Result<Shape, LayoutError> {
        Ok(self.region_of(shape, rank)?.shape())
    }

    /// Every rank that holds a part of `region`, with that part, in mesh order,
    /// including all replicas.
    ///
    /// The work is proportional to the owners found, not to the mesh.
    pub fn owners_of(self, shape: &Shape, region: &Region) -> Result<Vec<Owner>, LayoutError> {
        self.check_shape(shape)?;
        region.check_inside(shape)?;
        if region.is_empty() {
            return Ok(Vec::new());
        }
        // Which coordinates along an axis reach into the region depends only on
        // earlier splits of the same dim, so the mesh is walked as a tree.
        let mut partial = vec![(Coordinate::from_elem(0, self.mesh().ndim()), Region::whole(shape))];
        for split in &self.0.splits {
            for &axis in &split.axes {
                partial = self.descend(partial, split.dim, axis, region);
            }
        }
        for axis in 0..self.mesh().ndim() {
            if self.placements()[axis].shard_dim().is_none() {
                partial = partial
                    .into_iter()
                    .flat_map(|(coordinate, held)| {
                        (0..self.mesh().axis_size(axis)).map(move |index| {
                            let mut coordinate = coordinate.clone();
                            coordinate[axis] = index;
                            (coordinate, held.clone())
                        })
                    })
                    .collect();
            }
        }
        partial.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        partial
            .into_iter()
            .filter_map(|(coordinate, held)| Some((coordinate, held.intersect(region)?)))
            .map(|(coordinate, region)| Ok(Owner { rank: self.mesh().rank_at(&coordinate)?, region }))
            .collect()
    }

    fn descend(
        self,
        nodes: Vec<(Coordinate, Region)>,
        dim: usize,
        axis: usize,
        wanted: &Region,
    ) -> Vec<(Coordinate, Region)> {
        let ways = self.mesh().axis_size(axis);
        let wanted = wanted.range(dim);
        let mut children = Vec::new();
        for (coordinate, held) in nodes {
            let held_range = held.range(dim);
            let width = held_range.len().div_ceil(ways);
            if width == 0 {
                continue;
            }
            let first = wanted.start.saturating_sub(held_range.start) / width;
            let last = wanted.end.saturating_sub(held_range.start).div_ceil(width).min(ways);
            for index in first..last {
                let (offset, length) = chunk(held_range.len(), ways, index);
                let begin = held_range.start + offset;
                let mut coordinate = coordinate.clone();
                coordinate[axis] = index;
                children.push((coordinate, held.with_range(dim, begin..begin + length)));
            }
        }
        children
    }

    /// The ranks that hold the same region as `rank`, itself included, in mesh
    /// order. Where an axis is partial, they hold different values for it.
    pub fn replicas(self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        let mut coordinates = vec![self.mesh().coordinate(rank)?];
        for axis in 0..self.mesh().ndim() {
            if self.placements()[axis].shard_dim().is_some() {
                continue;
            }
            coordinates = coordinates
                .into_iter()
                .flat_map(|coordinate| {
                    (0..self.mesh().axis_size(axis)).map(move |index| {
                        let mut coordinate = coordinate.clone();
                        coordinate[axis] = index;
                        coordinate
                    })
                })
                .collect();
        }
        coordinates.iter().map(|coordinate| Ok(self.mesh().rank_at(coordinate)?)).collect()
    }

    /// The ranks that hold the same values as `rank`, itself included, in mesh
    /// order: its replicas without those along pending axes.
    pub fn copies(self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        let own = self.mesh().coordinate(rank)?;
        let mut copies = self.replicas(rank)?;
        let pending: SmallVec<[usize; 4]> = self.pending().map(|(axis, _)| axis).collect();
        copies.retain(|&other| {
            let coordinate = self.mesh().coordinate(other);
            coordinate.is_ok_and(|coordinate| pending.iter().all(|&axis| coordinate[axis] == own[axis]))
        });
        Ok(copies)
    }

    /// The first rank, in mesh order, that holds the same region as `rank`.
    pub fn first_replica(self, rank: usize) -> Result<usize, LayoutError> {
        let mut coordinate = self.mesh().coordinate(rank)?;
        for (axis, placement) in self.placements().iter().enumerate() {
            if placement.shard_dim().is_none() {
                coordinate[axis] = 0;
            }
        }
        Ok(self.mesh().rank_at(&coordinate)?)
    }

    /// The distinct regions that the mesh holds, one per group of replicas, in
    /// mesh order. They tile the tensor; empty ones are included.
    pub fn tiles(self, shape: &Shape) -> Result<Vec<Region>, LayoutError> {
        self.check_shape(shape)?;
        let mesh = self.mesh();
        let mut tiles = Vec::new();
        for rank in mesh.ranks() {
            if self.first_replica(rank)? == rank {
                tiles.push(self.region_at(shape, &mesh.coordinate(rank)?));
            }
        }
        Ok(tiles)
    }

    pub(crate) fn turns(self) -> &'static Turns {
        &self.0.key.turns
    }
}

/// The offset and length of the `index`-th of `ways` chunks of a dim.
pub(crate) fn chunk(size: usize, ways: usize, index: usize) -> (usize, usize) {
    let width = size.div_ceil(ways);
    let offset = (index * width).min(size);
    (offset, width.min(size - offset))
}

fn mesh_order_turns(placements: &[Placement]) -> Turns {
    debug_assert!(MAX_AXES <= u8::MAX as usize);
    placements
        .iter()
        .enumerate()
        .map(|(axis, placement)| match placement {
            Placement::Shard(_) => placements[..axis].iter().filter(|p| *p == placement).count() as u8,
            Placement::Replicate | Placement::Partial(_) => 0,
        })
        .collect()
}

impl LayoutData {
    fn new(id: u32, key: &LayoutKey) -> Result<Self, LayoutError> {
        let mesh = key.mesh;
        if key.placements.len() != mesh.ndim() {
            return Err(LayoutError::PlacementCount {
                mesh,
                axes: mesh.ndim(),
                placements: key.placements.len(),
            });
        }
        let mut splits: Vec<Split> = Vec::new();
        for axis in 0..mesh.ndim() {
            let Some(dim) = key.placements[axis].shard_dim() else { continue };
            if dim >= MAX_DIMS {
                return Err(LayoutError::DimTooHigh { axis: mesh.axis_name(axis), dim });
            }
            match splits.iter_mut().find(|split| split.dim == dim) {
                Some(split) => split.axes.push(axis),
                None => splits.push(Split { dim, axes: SplitOrder::from_slice(&[axis]) }),
            }
        }
        splits.sort_unstable_by_key(|split| split.dim);
        for split in &mut splits {
            split.axes.sort_by_key(|&axis| key.turns[axis]);
        }
        let mut first_pending = None;
        for axis in 0..mesh.ndim() {
            let Some(op) = key.placements[axis].pending() else { continue };
            let (first, first_op) = *first_pending.get_or_insert((axis, op));
            if !op.commutes_with(first_op) {
                return Err(LayoutError::MixedPartial {
                    first: mesh.axis_name(first),
                    first_op,
                    second: mesh.axis_name(axis),
                    second_op: op,
                });
            }
        }
        let dims_needed = splits.last().map_or(0, |split| split.dim + 1);
        Ok(Self { id, key: key.clone(), splits, dims_needed })
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Layout {}

impl Hash for Layout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl fmt::Display for Layout {
    /// `mesh(dp=2,tp=4) [R, S(0)]`. If a dim is not split in mesh order, its
    /// shards show their position: `[S(0)@1, S(0)@0]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placements: Vec<String> = (0..self.mesh().ndim())
            .map(|axis| {
                let placement = self.placements()[axis];
                match placement.shard_dim() {
                    Some(dim) if !self.split_axes(dim).is_sorted() => {
                        format!("{placement}@{}", self.turns()[axis])
                    }
                    _ => placement.to_string(),
                }
            })
            .collect();
        write!(f, "{} [{}]", self.mesh(), placements.join(", "))
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
