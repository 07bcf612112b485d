//! Ranks that exchange messages through any transport.
//!
//! A [`Transport`] only sends bytes from one process to another; what arrives is put
//! into an [`Inbox`]. [`connect`] makes a gang of both: agreement on calls, collectives
//! with the bits of the other engines, sub-gangs, and errors that name the rank that is
//! missing. Programs that already have connections between their processes, such as
//! those of `torch.distributed`, need nothing else to be an engine.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Instant;
//!
//! use weightloom_gang::transport::{Inbox, Transport, TransportError, connect};
//! use weightloom_gang::{Gang, GangExt, GangOptions};
//! use weightloom_layout::ReduceOp;
//!
//! /// Delivers to the inboxes of threads.
//! struct Threads {
//!     rank: usize,
//!     inboxes: Arc<[Inbox]>,
//! }
//!
//! impl Transport for Threads {
//!     fn rank(&self) -> usize {
//!         self.rank
//!     }
//!     fn size(&self) -> usize {
//!         self.inboxes.len()
//!     }
//!     fn engine(&self) -> &'static str {
//!         "inboxes"
//!     }
//!     fn inbox(&self) -> &Inbox {
//!         &self.inboxes[self.rank]
//!     }
//!     fn send(&self, to: usize, message: &[&[u8]]) -> Result<(), TransportError> {
//!         self.inboxes[to].deliver(self.rank, message.concat());
//!         Ok(())
//!     }
//!     fn flush(&self, _: Instant) -> Result<(), TransportError> {
//!         Ok(())
//!     }
//! }
//!
//! let inboxes: Arc<[Inbox]> = (0..3).map(|_| Inbox::default()).collect();
//! std::thread::scope(|scope| {
//!     for rank in 0..3 {
//!         let inboxes = Arc::clone(&inboxes);
//!         scope.spawn(move || {
//!             let gang = connect(Threads { rank, inboxes }, GangOptions::default());
//!             let mut sum = [rank as f32];
//!             gang.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
//!             assert_eq!(sum, [3.0]);
//!         });
//!     }
//! });
//! ```

mod agree;
mod envelope;
mod failure;
mod inbox;
mod rank;
mod transfer;

use std::sync::Arc;
use std::time::Instant;

use crate::gang::Gang;
use crate::options::GangOptions;
use crate::pending::Queued;
pub use inbox::Inbox;
use rank::TransportRank;

/// Sends messages between the processes of a job.
pub trait Transport: Send + Sync + 'static {
    /// The number of this process.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// The name of the engine: `torch`.
    fn engine(&self) -> &'static str;

    /// Where messages to this process arrive.
    fn inbox(&self) -> &Inbox;

    /// Sends the concatenation of some parts to another process, whose inbox it reaches
    /// even if nobody waits for it there. Messages to one process arrive in the order
    /// they were sent. Returns as soon as the parts may be reused.
    fn send(&self, to: usize, message: &[&[u8]]) -> Result<(), TransportError>;

    /// Waits until all messages have left this process, so that it may end.
    fn flush(&self, deadline: Instant) -> Result<(), TransportError>;
}

/// Why a transport cannot send or receive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
#[allow(missing_docs)]
pub struct TransportError {
    pub reason: String,
}

/// Makes a gang of all processes of a transport. Every process calls this once.
pub fn connect(transport: impl Transport, options: GangOptions) -> Arc<dyn Gang> {
    Arc::new(Queued::new(TransportRank::root(Arc::new(transport), options)))
}
