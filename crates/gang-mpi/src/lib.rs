//! Ranks that are MPI processes.
//!
//! The same program, started by `mpirun -n 4`, runs on a gang of four. Results
//! are the same bits as on thread ranks: values are combined in rank order by
//! [`weightloom_gang::reduce_into`], and MPI only carries bytes.
//!
//! MPI has no opinion on ranks that call different collectives: it hangs or
//! mixes up data. So every collective begins with a small agreement in which
//! all ranks compare what they are about to do; see the `agree` module. After
//! it, all ranks are known to be in the same call, and MPI's own collectives
//! cannot be entered by some and missed by others.
//!
//! All `unsafe` is in the `comm` module.

mod agree;
mod collective;
mod comm;
mod rank;
mod watchdog;
mod world;

pub use world::{MpiError, MpiOptions, MpiWorld};
