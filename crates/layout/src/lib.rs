//! Where a piece of a tensor lives.
//!
//! Pure data and arithmetic: this crate knows no tensors, does no I/O, and
//! starts no processes. Everything above it speaks its words:
//!
//! - [`DType`], [`Shape`] and [`Region`]: what a tensor is, and a box inside it.
//! - [`Mesh`], [`Placement`] and [`Layout`]: ranks in an array with named axes,
//!   what each axis does to a tensor, and from both, what each rank holds.
//! - [`check_tiling`]: proof that regions cover a tensor exactly once.
//! - [`Plan`]: the cheapest collectives from one layout to another.
//! - [`Exchange`]: what each rank sends to whom when the mesh changes.
//!
//! A mesh *axis* is never a tensor *dim*: axes count ranks, dims count
//! elements.

mod copy;
mod dtype;
mod exchange;
mod float8;

mod intern;
mod layout;
mod mesh;
mod placement;
mod plan;
mod region;
mod shape;
mod text;
mod tiling;

pub use copy::{CopyError, Tile, TileMut, copy_region};
pub use dtype::{DType, UnknownDType};
pub use exchange::{Exchange, Transfer};
pub use float8::{F8E4M3, F8E5M2};

pub use layout::{Layout, LayoutError, LayoutId, Owner, Placements, Split, SplitOrder};
pub use mesh::{Coordinate, MAX_AXES, Mesh, MeshError};
pub use placement::{Placement, PlacementError, ReduceOp};
pub use plan::{Plan, PlanError, Prices, Stage, Step, greedy_plan, plan};
pub use region::{Region, RegionError, Runs};
pub use shape::{Dims, MAX_DIMS, Shape, ShapeError};
pub use text::TextError;
pub use tiling::{TilingError, check_tiling};
