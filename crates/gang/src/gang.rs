//! The interface of a gang.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weightloom_layout::ReduceOp;

use crate::call::{Call, total};
use crate::collectives::{
    AllGather, AllReduce, AllReduceInto, AllToAll, Barrier, Broadcast, Collective, ReduceScatter,
};
use crate::element::{Element, Elements, ElementsMut};
use crate::error::GangError;
use crate::pending::Pending;

/// A group of ranks that communicate: MPI's communicator, PyTorch's process
/// group.
///
/// The methods are what an engine provides; callers use [`GangExt`]. Ranks are
/// numbered within the gang, from 0; [`members`](Self::members) maps them to
/// ranks of the root gang.
///
/// # Contract
///
/// - Every rank issues the same calls on a gang in the same order. Otherwise
///   the ranks get an error that names both calls.
/// - Reductions combine values in rank order (see
///   [`reduce_into`](crate::reduce_into)), so that the same inputs give the
///   same bits on every run and every engine.
/// - If a rank ends, ranks that wait for it fail within the gang's timeout.
///   After a failed collective, every later call returns the same error.
/// - A rank uses a gang from one thread at a time; the `start_` methods overlap
///   communication with other work.
pub trait Gang: Send + Sync {
    /// This rank's number in the gang.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// The name of the engine: `threads`.
    fn engine(&self) -> &'static str;

    /// The ranks' numbers in the root gang, in the order of this gang.
    fn members(&self) -> &[usize];

    /// Takes part in a collective and waits for its end.
    fn run(&self, call: Call<'_>) -> Result<(), GangError>;

    /// Sends a message to another rank. Returns as soon as `data` may be
    /// reused, without waiting for the receiver.
    fn send(&self, data: Elements<'_>, to: usize, tag: u32) -> Result<(), GangError>;

    /// Reserves the next message from a rank under a tag. The n-th message goes
    /// to the n-th ticket.
    fn ticket(&self, from: usize, tag: u32) -> Result<Ticket, GangError>;

    /// Waits for a reserved message.
    fn receive(&self, ticket: Ticket, into: ElementsMut<'_>) -> Result<(), GangError>;

    /// Forms a gang of some of the ranks, in the order listed. Exactly the
    /// listed ranks call this, with the same list.
    fn sub_gang(&self, ranks: &[usize]) -> Result<Arc<dyn Gang>, GangError>;

    /// Runs a job that uses the gang, now or on another thread.
    fn defer(&self, lane: Lane, job: Job);
}

/// A deferred use of a gang.
pub type Job = Box<dyn FnOnce(&dyn Gang) + Send>;

/// The order of a deferred job among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// After all earlier jobs and before any later blocking collective.
    Ordered,
    /// Independent of other jobs: for receives, which match by ticket.
    Detached,
}

/// The reservation of one message.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Ticket {
    pub from: usize,
    pub tag: u32,
    /// Position among the sender's messages under the tag.
    pub number: u64,
}

/// The operations of a gang, implemented for every engine.
///
/// The `start_` methods return immediately with a [`Pending`] result, take
/// their buffers by value, and run in the order started. A blocking collective
/// waits for those started before it.
pub trait GangExt: Gang {
    /// Runs a collective on untyped buffers, such as dtypes without a Rust type.
    fn collective<'a, C: Collective<'a>>(&self, collective: C) -> Result<(), GangError> {
        self.run(Call::new(collective, self.rank(), self.size())?)
    }

    /// Waits until every rank has called it.
    fn barrier(&self) -> Result<(), GangError> {
        self.collective(Barrier)
    }

    /// Reduces the buffers of all ranks, element by element, into each of them.
    fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<(), GangError> {
        self.collective(AllReduce { buffer: ElementsMut::of(buffer), op })
    }

    /// Reduces the send buffers of all ranks into the receive buffer of each.
    fn all_reduce_into<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<(), GangError> {
        self.collective(AllReduceInto { send: Elements::of(send), recv: ElementsMut::of(recv), op })
    }

    /// Concatenates the send buffers of all ranks. `counts[r]` is the length of
    /// rank `r`'s; all ranks pass the same counts.
    fn all_gather<T: Element>(&self, send: &[T], counts: &[usize], recv: &mut [T]) -> Result<(), GangError> {
        self.collective(AllGather { send: Elements::of(send), recv: ElementsMut::of(recv), counts })
    }

    /// Gathers the send buffers of all ranks, whose lengths the other ranks need
    /// not know.
    fn all_gather_varying<T: Element>(&self, send: &[T]) -> Result<Vec<Vec<T>>, GangError> {
        let mut lengths = vec![0u64; self.size()];
        self.all_gather(&[send.len() as u64], &vec![1; self.size()], &mut lengths)?;
        let counts: Vec<usize> = lengths.iter().map(|&length| length as usize).collect();
        let mut joined = zeroed(&counts)?;
        self.all_gather(send, &counts, &mut joined)?;
        Ok(split(&joined, &counts).map(<[T]>::to_vec).collect())
    }

    /// Reduces the send buffers of all ranks; rank `r` receives the `r`-th part,
    /// which has `counts[r]` elements.
    fn reduce_scatter<T: Element>(
        &self,
        send: &[T],
        counts: &[usize],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<(), GangError> {
        self.collective(ReduceScatter { send: Elements::of(send), recv: ElementsMut::of(recv), counts, op })
    }

    /// Sends `send_counts[r]` elements to rank `r` and receives
    /// `recv_counts[r]` from it.
    fn all_to_all<T: Element>(
        &self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<(), GangError> {
        let (send, recv) = (Elements::of(send), ElementsMut::of(recv));
        self.collective(AllToAll { send, send_counts, recv, recv_counts })
    }

    /// Copies the buffer of `root` to every rank.
    fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<(), GangError> {
        self.collective(Broadcast { buffer: ElementsMut::of(buffer), root })
    }

    /// Sends elements to another rank without waiting for it.
    fn send_slice<T: Element>(&self, data: &[T], to: usize, tag: u32) -> Result<(), GangError> {
        self.send(Elements::of(data), to, tag)
    }

    /// Waits for the next message from a rank under a tag.
    fn recv<T: Element>(&self, into: &mut [T], from: usize, tag: u32) -> Result<(), GangError> {
        self.receive(self.ticket(from, tag)?, ElementsMut::of(into))
    }

    /// Copies `root`'s object to every rank; the others pass `None`.
    fn broadcast_object<T: Serialize + DeserializeOwned>(
        &self,
        object: Option<&T>,
        root: usize,
    ) -> Result<T, GangError> {
        let mut bytes = match object {
            Some(object) if self.rank() == root => to_bytes(object)?,
            _ => Vec::new(),
        };
        let mut length = [bytes.len() as u64];
        self.broadcast(&mut length, root)?;
        bytes.resize(length[0] as usize, 0);
        self.broadcast(&mut bytes, root)?;
        from_bytes(&bytes)
    }

    /// Returns the objects of all ranks, in rank order, on every rank.
    fn all_gather_objects<T: Serialize + DeserializeOwned>(&self, object: &T) -> Result<Vec<T>, GangError> {
        let parts = self.all_gather_varying(&to_bytes(object)?)?;
        parts.iter().map(|bytes| from_bytes(bytes)).collect()
    }

    /// Returns the objects of all ranks, in rank order, on `root`, and `None`
    /// elsewhere.
    fn gather_objects<T: Serialize + DeserializeOwned>(
        &self,
        object: &T,
        root: usize,
    ) -> Result<Option<Vec<T>>, GangError> {
        if root >= self.size() {
            return Err(GangError::NoSuchRank { rank: root, size: self.size() });
        }
        let bytes = to_bytes(object)?;
        let mut lengths = vec![0u64; self.size()];
        self.all_gather(&[bytes.len() as u64], &vec![1; self.size()], &mut lengths)?;
        let to_root = |length: u64| {
            let mut counts = vec![0; self.size()];
            counts[root] = length as usize;
            counts
        };
        let send_counts = to_root(bytes.len() as u64);
        let recv_counts: Vec<usize> = match self.rank() == root {
            true => lengths.iter().map(|&length| length as usize).collect(),
            false => vec![0; self.size()],
        };
        let mut joined: Vec<u8> = zeroed(&recv_counts)?;
        self.all_to_all(&bytes, &send_counts, &mut joined, &recv_counts)?;
        if self.rank() != root {
            return Ok(None);
        }
        split(&joined, &recv_counts).map(from_bytes).collect::<Result<_, _>>().map(Some)
    }

    /// Starts arbitrary work on the gang, after the work started before it.
    fn start<T, W>(&self, work: W) -> Pending<T>
    where
        T: Send + 'static,
        W: FnOnce(&dyn Gang) -> Result<T, GangError> + Send + 'static,
    {
        let (pending, deliver) = Pending::new();
        self.defer(Lane::Ordered, Box::new(move |gang| deliver.send(work(gang))));
        pending
    }

    /// Starts [`all_reduce`](Self::all_reduce).
    fn start_all_reduce<T: Element>(&self, mut buffer: Vec<T>, op: ReduceOp) -> Pending<Vec<T>> {
        self.start(move |gang| gang.all_reduce(&mut buffer, op).map(|()| buffer))
    }

    /// Starts [`all_gather`](Self::all_gather).
    fn start_all_gather<T: Element>(&self, send: Vec<T>, counts: Vec<usize>) -> Pending<Vec<T>> {
        self.start(move |gang| {
            let mut recv = zeroed(&counts)?;
            gang.all_gather(&send, &counts, &mut recv).map(|()| recv)
        })
    }

    /// Starts [`reduce_scatter`](Self::reduce_scatter).
    fn start_reduce_scatter<T: Element>(
        &self,
        send: Vec<T>,
        counts: Vec<usize>,
        op: ReduceOp,
    ) -> Pending<Vec<T>> {
        self.start(move |gang| {
            let mut recv = zeroed(counts.get(gang.rank()).map_or(&[], std::slice::from_ref))?;
            gang.reduce_scatter(&send, &counts, &mut recv, op).map(|()| recv)
        })
    }

    /// Starts [`all_to_all`](Self::all_to_all).
    fn start_all_to_all<T: Element>(
        &self,
        send: Vec<T>,
        send_counts: Vec<usize>,
        recv_counts: Vec<usize>,
    ) -> Pending<Vec<T>> {
        self.start(move |gang| {
            let mut recv = zeroed(&recv_counts)?;
            gang.all_to_all(&send, &send_counts, &mut recv, &recv_counts).map(|()| recv)
        })
    }

    /// Starts [`broadcast`](Self::broadcast).
    fn start_broadcast<T: Element>(&self, mut buffer: Vec<T>, root: usize) -> Pending<Vec<T>> {
        self.start(move |gang| gang.broadcast(&mut buffer, root).map(|()| buffer))
    }

    /// Starts [`barrier`](Self::barrier).
    fn start_barrier(&self) -> Pending<()> {
        self.start(|gang| gang.barrier())
    }

    /// Starts [`recv`](Self::recv). Reserves the message immediately, so that
    /// later receives cannot take it; collectives do not wait for it.
    fn start_recv<T: Element>(&self, length: usize, from: usize, tag: u32) -> Pending<Vec<T>> {
        let (pending, deliver) = Pending::new();
        match self.ticket(from, tag) {
            Err(error) => deliver.send(Err(error)),
            Ok(ticket) => self.defer(
                Lane::Detached,
                Box::new(move |gang| {
                    let received = zeroed(&[length]).and_then(|mut into| {
                        gang.receive(ticket, ElementsMut::of(&mut into))?;
                        Ok(into)
                    });
                    deliver.send(received);
                }),
            ),
        }
        pending
    }
}

impl<G: Gang + ?Sized> GangExt for G {}

/// Splits a concatenation into its parts.
fn split<'a, T>(mut joined: &'a [T], counts: &[usize]) -> impl Iterator<Item = &'a [T]> {
    counts.iter().map(move |&count| {
        let (part, rest) = joined.split_at(count);
        joined = rest;
        part
    })
}

/// Allocates as many elements as the counts add up to.
fn zeroed<T: Element>(counts: &[usize]) -> Result<Vec<T>, GangError> {
    let length = total(counts);
    let mut elements = Vec::new();
    elements.try_reserve_exact(length).map_err(|_| GangError::Memory { dtype: T::DTYPE, length })?;
    elements.resize(length, T::zeroed());
    Ok(elements)
}

fn to_bytes<T: Serialize>(object: &T) -> Result<Vec<u8>, GangError> {
    postcard::to_allocvec(object)
        .map_err(|error| GangError::Object { action: "serialize", reason: error.to_string() })
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, GangError> {
    postcard::from_bytes(bytes)
        .map_err(|error| GangError::Object { action: "deserialize", reason: error.to_string() })
}

/// Checks the list of a sub-gang and returns the caller's rank in it.
pub fn check_sub_gang(rank: usize, size: usize, ranks: &[usize]) -> Result<usize, GangError> {
    if let Some(&outside) = ranks.iter().find(|&&listed| listed >= size) {
        return Err(GangError::NoSuchRank { rank: outside, size });
    }
    let repeated = ranks.iter().enumerate().any(|(index, listed)| ranks[..index].contains(listed));
    match ranks.iter().position(|&listed| listed == rank) {
        Some(index) if !repeated => Ok(index),
        _ => Err(GangError::SubGang { rank, ranks: ranks.to_vec() }),
    }
}
