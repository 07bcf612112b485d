//! Training: one file says what is trained, on what, and how.
//!
//! - A [`Config`] is that file, as types: `model`, `data`, `train`.
//! - [`data`] goes from files to rows that a model is trained on.
//! - An [`engine`] is what one rank trains: its stages, gradients, the step.
//! - An [`optimizer`] says what gradients do to weights.
//! - A [`pipeline`]'s work is a program for each rank, proven before it runs.
//! - A [`schedule`] says what the learning rate is at a step.
//! - [`metrics`] go to files, step by step.
//! - A [`spec`] is what a model is to a trainer; [`sizes`] says how ranks share it.
//! - A [`callback`] is what others may do while a run goes on; [`train`] is the run.
//! - A [`dry`] run says what a run would do, for any number of ranks.
//! - [`keep`] says what a checkpoint holds of a run.

pub mod callback;
pub mod config;
pub mod data;
pub mod dry;
pub mod engine;
mod error;
pub mod keep;
pub mod metrics;
#[cfg(test)]
#[path = "../tests/trainer/models.rs"]
mod models;
pub mod optimizer;
pub mod pipeline;
pub mod schedule;
pub mod sizes;
pub mod spec;
mod trainer;

pub use config::Config;
pub use error::TrainError;
pub use trainer::{End, Outcome, TrainRequest, rehearse, train};
