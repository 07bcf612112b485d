//! Weightloom as a library: the crates of the workspace under one roof, and the
//! way to start ranks.
//!
//! - [`layout`]: where a piece of a tensor lives.
//! - [`gang`]: ranks acting together.
//! - [`tensor`]: local tensors and their gradients.
//! - [`dtensor`]: tensors of which every rank holds a part.
//! - [`checkpoint`]: checkpoints of any format, on any mesh.
//! - [`nn`]: one configurable decoder, its cache, adapters and generation.
//! - [`hub`]: models by name.
//! - [`models`]: the families of models.
//! - [`train`]: training runs.
//! - [`sway`]: judging what a fine-tuning changed.
//! - [`serve`]: an OpenAI-compatible server.
//! - [`standard`]: the hub as this program starts it.
//! - [`launch`]: the same program on thread ranks or on MPI ranks.

pub use weightloom_checkpoint as checkpoint;
pub use weightloom_dtensor as dtensor;
pub use weightloom_errors as errors;
pub use weightloom_gang as gang;
#[cfg(feature = "mpi")]
pub use weightloom_gang_mpi as gang_mpi;
pub use weightloom_hub as hub;
pub use weightloom_layout as layout;
pub use weightloom_models as models;
pub use weightloom_nn as nn;
pub use weightloom_serve as serve;
pub use weightloom_sway as sway;
pub use weightloom_tensor as tensor;
pub use weightloom_train as train;

pub mod launch;
pub mod standard;

/// Compiles and runs the examples of the documentation.
#[doc = include_str!("../../../docs/library.md")]
#[cfg(doctest)]
struct Library;
