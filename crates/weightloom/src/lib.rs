//! Find, load, train, run, checkpoint and judge language models.
//!
//! [`load`], [`generate`], [`train`](fn@train) and [`judge`] do the common tasks
//! in one call:
//!
//! ```no_run
//! # fn main() -> Result<(), weightloom::hub::HubError> {
//! let model = weightloom::load("smollm2_135m_instruct", None)?;
//! println!("{}", weightloom::generate(&model, "The capital of France is", 16)?);
//! # Ok(())
//! # }
//! ```
//!
//! The crates of the workspace, lowest first:
//!
//! - [`layout`]: how tensors are placed on a mesh of ranks.
//! - [`gang`]: collective communication.
//! - [`machine`]: memory and disk space that a process may use.
//! - [`tensor`]: local tensors and automatic differentiation.
//! - [`dtensor`]: distributed tensors.
//! - [`checkpoint`]: checkpoints in any format, on any mesh.
//! - [`nn`]: models, one configurable decoder, adapters and generation.
//! - [`hub`]: models by name.
//! - [`models`]: model families.
//! - [`train`](mod@train): training.
//! - [`sway`]: judging fine-tuned models.
//! - [`serve`]: an OpenAI-compatible server.
//!
//! This crate adds:
//!
//! - [`Registry`]: what a program knows by name, and [`app`](fn@app): a program of your
//!   own with every command.
//! - [`launch`]: ranks as threads or as processes of an MPI job.
//! - [`cli`]: the command line.

#![forbid(unsafe_code)]

// The command line uses the library by its public name.
extern crate self as weightloom;

pub use weightloom_checkpoint as checkpoint;
pub use weightloom_dtensor as dtensor;
pub use weightloom_errors as errors;
pub use weightloom_gang as gang;
#[cfg(feature = "mpi")]
pub use weightloom_gang_mpi as gang_mpi;
pub use weightloom_hub as hub;
pub use weightloom_layout as layout;
pub use weightloom_machine as machine;
pub use weightloom_models as models;
pub use weightloom_nn as nn;
pub use weightloom_serve as serve;
pub use weightloom_sway as sway;
pub use weightloom_tensor as tensor;
pub use weightloom_train as train;

mod app;
pub mod cli;
mod facade;
pub mod launch;
mod opened_model;
mod prompt_format;
mod registry;
mod sampling_options;

pub use app::{App, app};
pub use facade::{JudgeSuiteError, LoadedGenerator, generate, judge, load, load_with, train};
pub use opened_model::{AdapterMode, OpenedModel};
pub use prompt_format::PromptFormat;
pub use registry::{Folders, MODEL_PATH, Registry, RegistryError, RegistryErrors};
pub use sampling_options::SamplingOptions;

/// Compiles and runs the examples of the README.
#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
struct Readme;

/// Compiles the program of the documentation.
#[doc = include_str!("../../../docs/extend.md")]
#[cfg(doctest)]
struct Extend;
