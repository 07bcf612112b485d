//! MPI processes as ranks of a gang.
//!
//! The same program, started by `mpirun -n 4`, runs on a gang of four. Results
//! have the same bits as on thread ranks: [`weightloom_gang::reduce_into`]
//! reduces in rank order, and MPI only transports bytes.
//!
//! If ranks call different collectives, MPI hangs or mixes up data. So every
//! collective starts with a short agreement in which all ranks compare their
//! calls (module `agree`). MPI's own collectives follow only after all ranks
//! have issued the same call.
//!
//! The module `comm` holds all `unsafe`.
//!
//! ```
//! use weightloom_gang::GangExt;
//! use weightloom_gang_mpi::{MpiOptions, MpiWorld};
//!
//! // Without `mpirun`, a job of one process.
//! let world = MpiWorld::join(MpiOptions::default()).unwrap();
//! let mut sum = [1.0f32];
//! world.root().all_reduce(&mut sum, weightloom_layout::ReduceOp::Sum).unwrap();
//! assert_eq!(sum, [world.root().size() as f32]);
//! world.leave().unwrap();
//! ```

mod agree;
mod collective;
mod comm;
mod rank;
mod roll_call;
mod watchdog;
mod world;

pub use world::{MpiError, MpiOptions, MpiWorld};
