//! Layouts of tensors that are distributed over ranks.
//!
//! Pure data and arithmetic: this crate does not depend on tensors, does no
//! I/O, and starts no processes.
//!
//! - [`DType`], [`Shape`] and [`Region`]: the type and size of a tensor, and a
//!   box inside it.
//! - [`Mesh`], [`Placement`] and [`Layout`]: ranks in an array with named axes,
//!   how each axis distributes a tensor, and the region that each rank holds.
//! - [`check_tiling`]: proof that regions cover a tensor exactly once.
//! - [`Plan`]: the cheapest collectives from one layout to another.
//! - [`MeshExchange`]: the transfers between ranks when the mesh changes.
//!
//! Ranks lie along a mesh *axis*, elements along a tensor *dim*; the words are
//! never mixed.
//!
//! ```
//! use weightloom_layout::{DType, Layout, Prices, Shape, plan};
//!
//! let shape = Shape::new(&[8, 4])?;
//! let sharded: Layout = "mesh(tp=2) [S(0)]".parse()?;
//! let replicated = Layout::replicated(sharded.mesh());
//! let plan = plan(sharded, replicated, &shape, DType::F32, Prices::default())?;
//! let steps: Vec<&str> = plan.stages().iter().map(|stage| stage.step.name()).collect();
//! assert_eq!(steps, ["all-gather"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod copy;
mod dtype;
mod float8;
mod intern;
mod layout;
mod mesh;
mod mesh_exchange;
mod placement;
mod plan;
mod region;
mod shape;
mod text;
mod tiling;

pub use copy::{CopyError, Tile, TileMut, copy_region};
pub use dtype::{DType, UnknownDType};
pub use float8::{F8E4M3, F8E5M2};
pub use layout::{Layout, LayoutError, LayoutId, Owner, Placements, Split, SplitOrder};
pub use mesh::{Coordinate, MAX_AXES, Mesh, MeshError};
pub use mesh_exchange::{MeshExchange, RegionTransfer};
pub use placement::{Placement, PlacementError, ReduceOp};
pub use plan::{Plan, PlanError, Prices, Stage, Step, greedy_plan, plan};
pub use region::{Region, RegionError, Runs};
pub use shape::{Dims, MAX_DIMS, Shape, ShapeError};
pub use text::TextError;
pub use tiling::{TilingError, check_tiling};
