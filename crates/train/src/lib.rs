//! Training: one file says what is trained, on what, and how.
//!
//! - A [`Config`] is that file, as types: `model`, `data`, `train`.
//! - A [`data::Loader`] makes rows of files, the same for any number of ranks.

pub mod config;
pub mod data;

pub use config::Config;
