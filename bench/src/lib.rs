//! Measurement and reporting for the benchmarks.
//!
//! Shared machines are noisy: every figure is a median over repetitions, and
//! the result is the ratio to a peer or a hardware floor measured in the same
//! run. Set `WEIGHTLOOM_BENCH_JSON` to a folder to keep the rows of each
//! benchmark as JSON; the `report` binary makes `docs/benchmarks.md` of them.

#![forbid(unsafe_code)]

mod interleaved;
pub mod page;
mod peer;
mod process;
mod provenance;
mod report;
mod timing;

pub use interleaved::Interleaved;
pub use peer::Peer;
pub use process::{json_f64, json_output, median_f64, peak_memory};
pub use provenance::{Machine, Provenance};
pub use report::{Against, Goal, JSON_FOLDER, Report, Results, Row};
pub use timing::{duration, gigabytes, median, median_of_many, median_time, seconds, throughput};
