//! Training: one file says what is trained, on what, and how.
//!
//! - A [`Config`] is that file, as types: `model`, `data`, `train`.
//! - An [`optimizer`] says what gradients do to weights.

pub mod config;
pub mod optimizer;

pub use config::Config;
