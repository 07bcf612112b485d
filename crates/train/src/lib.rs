//! Training: one file says what is trained, on what, and how.
//!
//! - A [`Config`] is that file, as types: `model`, `data`, `train`.
//! - [`metrics`] are what a run tells of itself.
//! - An [`optimizer`] says what gradients do to weights.
//! - A [`pipeline`]'s work is a program for each rank, proven before it runs.
//! - A [`schedule`] says what the learning rate is at a step.

pub mod config;
pub mod metrics;
pub mod optimizer;
pub mod pipeline;
pub mod schedule;

pub use config::Config;
