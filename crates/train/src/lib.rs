//! Training: one file says what is trained, on what, and how.
//!
//! - A [`Config`] is that file, as types: `model`, `data`, `train`.
//! - A [`ModelSpec`](spec::ModelSpec) is what a model is to a trainer; [`Specs`](spec::Specs) finds one by name.
//! - [`ParallelSizes`](sizes::ParallelSizes) says how ranks share the work, once all numbers fit.

pub mod config;
pub mod sizes;
pub mod spec;

pub use config::Config;
