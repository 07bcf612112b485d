//! Ranks acting together.
//!
//! A [`Gang`] is a set of ranks that exchange data: all of them in collectives
//! such as all-reduce, two of them in messages. The trait is small; what you
//! call is in [`GangExt`]. Engines:
//!
//! - [`solo`]: one rank.
//! - [`threads`]: ranks as threads of one process. They compute real results;
//!   nothing is faked.
//! - MPI, in the crate `weightloom-gang-mpi`.
//!
//! [`Gangs`] names the gangs of a training run (root, dp, rdp, sdp, tp, pp).
//! [`Redistributor`] carries out a layout plan on real ranks. [`conformance`]
//! is the suite that every engine passes.
//!
//! This crate knows no tensors and opens no sockets.

pub mod conformance;
pub mod threads;

mod call;
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

pub use call::{Call, Signature};
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
