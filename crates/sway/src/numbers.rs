//! Arithmetic that probes judge with, on plain numbers.
//!
//! Reports are compared with those of dlm-sway down to the last digits, so
//! these functions say how they round: Python's `fmean` rounds an exact sum,
//! numpy adds in pairs, and resampling draws what numpy's generator draws.

pub mod align;
pub mod binomial;
pub mod bootstrap;
pub mod divergence;
pub mod kmeans;
pub mod linear_fit;
pub mod logistic;
pub mod pcg64;
pub mod ratcliff_obershelp;
pub mod sign_flip_test;
pub mod student_t;
pub mod style;
pub mod summation;
pub mod variance;

pub use divergence::{DivergenceError, DivergenceKind};
pub use ratcliff_obershelp::ratcliff_obershelp;
pub use summation::{exact_sum, mean, pairwise_sum};
pub use variance::{population_std, population_variance};
