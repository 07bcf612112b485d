//! Statistics on plain numbers.
//!
//! Reports agree with those of dlm-sway to the last digit, so each function
//! documents how it rounds: Python's `fmean` rounds an exact sum once, numpy
//! sums pairwise, and resampling draws the same numbers as numpy's generator.
//!
//! ```
//! use weightloom_sway::numbers::student_t::TTest;
//!
//! let test = TTest::of(&[1.0, 2.0, 3.0]).expect("at least two finite values");
//! assert_eq!((test.mean, test.std_dev), (2.0, 1.0));
//! assert!((test.p_greater(0.0) - 0.0371).abs() < 1e-4);
//! ```

pub mod align;
pub mod binomial;
pub mod bootstrap;
pub mod divergence;
pub mod kmeans;
pub mod linear_fit;
pub mod logistic;
pub mod pcg64;
pub mod permutation_test;
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
