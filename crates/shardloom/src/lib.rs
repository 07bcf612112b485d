//! Shardloom as a library: the crates of the workspace under one roof, and the
//! way to start ranks.
//!
//! - [`layout`]: where a piece of a tensor lives.
//! - [`gang`]: ranks acting together.
//! - [`launch`]: the same program on thread ranks or on MPI ranks.

pub use shardloom_gang as gang;
#[cfg(feature = "mpi")]
pub use shardloom_gang_mpi as gang_mpi;
pub use shardloom_layout as layout;

pub mod launch;

/// Compiles and runs the examples of the README.
#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
struct Readme;
