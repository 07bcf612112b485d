//! Arithmetic that probes judge with, on plain numbers.
//!
//! Reports are compared with those of dlm-sway down to the last digits, so
//! these functions say how they round: Python's `fmean` rounds an exact sum,
//! numpy adds in pairs, and resampling draws what numpy's generator draws.

pub mod binomial;
pub mod bootstrap;
pub mod divergence;
pub mod gestalt;
pub mod kmeans;
pub mod line;
pub mod logistic;
pub mod pcg64;
pub mod signs;
pub mod spread;
pub mod student;
pub mod style;
pub mod sum;
pub mod support;

pub use divergence::{DivergenceError, DivergenceKind};
pub use gestalt::gestalt_ratio;
pub use spread::{population_deviation, population_variance};
pub use sum::{exact_sum, mean, pairwise_sum};
