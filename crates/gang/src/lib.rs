//! Communication between ranks.
//!
//! A [`Gang`] is a group of ranks that exchange data: all of them in
//! [`collectives`] such as all-reduce, two of them in messages. Callers use the
//! methods of [`GangExt`]. Engines:
//!
//! - [`solo`]: one rank.
//! - [`threads`]: ranks as threads of one process.
//! - [`transport`]: processes that exchange messages by other means.
//! - MPI, in the crate `weightloom-gang-mpi`.
//!
//! [`Gangs`] holds the gangs of a training run (root, dp, rdp, sdp, tp, pp).
//! [`Redistributor`] executes redistribution plans. [`conformance`] is the test
//! suite that every engine passes.
//!
//! This crate does not depend on tensors and opens no sockets.
//!
//! ```
//! use weightloom_gang::{GangExt, GangOptions, threads};
//!
//! let gathered = threads::run(3, GangOptions::default(), |gang| {
//!     let mut all = [0; 3];
//!     gang.all_gather(&[gang.rank() as u32 * 10], &[1; 3], &mut all).map(|()| all)
//! })?;
//! assert_eq!(gathered, vec![Ok([0, 10, 20]); 3]);
//! # Ok::<(), threads::RunError>(())
//! ```

pub mod collectives;
pub mod conformance;
pub mod threads;
pub mod transport;

mod call;
mod counts;
mod element;
mod error;
mod gang;
mod gangs;
mod mail;
mod options;
mod pending;
mod redistribute;
mod reduce;
mod solo;

pub use call::{Call, Check, Counts, Signature, Transfer};
pub use counts::{count_balance, find_count_mismatch};
pub use element::{Element, Elements, ElementsMut};
pub use error::{Departure, GangError};
pub use gang::{Gang, GangExt, Job, Lane, Ticket, check_sub_gang};
pub use gangs::{GangSizes, Gangs, GangsError, SizeError};
pub use mail::{Mail, Message};
pub use options::GangOptions;
pub use pending::{Pending, Queued};
pub use redistribute::{RedistributeError, Redistributor};
pub use reduce::{check_reducible, reduce_in_place, reduce_into};
pub use solo::solo;
