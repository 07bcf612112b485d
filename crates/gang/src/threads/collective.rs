//! Transfers between thread ranks, through each other's memory.
//!
//! This file holds all `unsafe` of the thread engine. Ranks pass raw views of
//! their buffers to a [`Rendezvous`]. Between arriving and leaving, every rank
//! is inside [`run`], which borrows the real buffers, so the views are valid.
//! These rules exclude conflicting accesses:
//!
//! - Ranks only read send buffers during a round.
//! - Only its own rank touches a receive buffer, except in all-reduces.
//! - In an all-reduce, only rank `r` touches the `r`-th part of every buffer,
//!   or of every receive buffer if there are two.

use smallvec::SmallVec;
use weightloom_layout::{DType, ReduceOp};

use super::rendezvous::Rendezvous;
use crate::call::{Call, Transfer};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::reduce::{reduce_into, reduce_into_all};

/// The buffers that a rank shares with the others during a round.
#[derive(Clone, Copy)]
pub(super) struct SharedBuffers {
    sent: RawBytes,
    /// Written by other ranks in an all-reduce with two buffers.
    received: RawBytes,
    /// Elements for each rank, in an exchange.
    send_counts: RawCounts,
    recv_counts: RawCounts,
}

#[derive(Clone, Copy)]
struct RawBytes {
    start: *mut u8,
    length: usize,
}

#[derive(Clone, Copy)]
struct RawCounts {
    start: *const usize,
    length: usize,
}

// SAFETY: ranks use the views only between arriving and leaving, while the
// owner of the memory is inside `run` and keeps it alive, and by the rules
// above.
unsafe impl Send for SharedBuffers {}

impl RawBytes {
    const NONE: Self = Self { start: std::ptr::NonNull::dangling().as_ptr(), length: 0 };

    /// # Safety
    ///
    /// Called within a round, for a range that no rank writes.
    unsafe fn read<'a>(self, range: std::ops::Range<usize>) -> &'a [u8] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the range is inside the buffer; the caller guarantees that it
        // is alive and unwritten.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// # Safety
    ///
    /// Called within a round, for a range that no other rank touches.
    unsafe fn write<'a>(self, range: std::ops::Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the range is inside the buffer; the caller guarantees that it
        // is alive and not shared.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

impl RawCounts {
    const NONE: Self = Self { start: std::ptr::NonNull::dangling().as_ptr(), length: 0 };

    fn of(counts: &[usize]) -> Self {
        Self { start: counts.as_ptr(), length: counts.len() }
    }

    /// # Safety
    ///
    /// Called within a round.
    unsafe fn read<'a>(self) -> &'a [usize] {
        // SAFETY: `run` borrows the counts, and no rank writes them.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl SharedBuffers {
    const NONE: Self = Self {
        sent: RawBytes::NONE,
        received: RawBytes::NONE,
        send_counts: RawCounts::NONE,
        recv_counts: RawCounts::NONE,
    };

    fn reading(send: Elements<'_>) -> Self {
        let bytes = send.bytes();
        let sent = RawBytes { start: bytes.as_ptr().cast_mut(), length: bytes.len() };
        Self { sent, ..Self::NONE }
    }

    fn writing(buffer: &mut ElementsMut<'_>) -> Self {
        let bytes = buffer.bytes_mut();
        let sent = RawBytes { start: bytes.as_mut_ptr(), length: bytes.len() };
        Self { sent, ..Self::NONE }
    }
}

/// Ends the round even if the work panics, so that no rank waits forever and no
/// buffer is released while others may use it.
struct Leave<'a>(&'a Rendezvous);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Takes part in a collective.
pub(super) fn run(rendezvous: &Rendezvous, rank: usize, call: Call<'_>) -> Result<(), GangError> {
    let signature = call.signature();
    let accept = |_: &[SharedBuffers]| Ok(());
    match call.into_transfer() {
        Transfer::None => {
            rendezvous.arrive(rank, signature, SharedBuffers::NONE, accept)?;
            rendezvous.leave();
        }
        Transfer::AllReduce { mut buffer, op } => {
            let buffers = SharedBuffers::writing(&mut buffer);
            let all = rendezvous.arrive(rank, signature, buffers, accept)?;
            let _leave = Leave(rendezvous);
            all_reduce(&all, rank, buffer.dtype(), op);
        }
        Transfer::AllReduceInto { send, mut recv, op } => {
            let dtype = recv.dtype();
            let received = SharedBuffers::writing(&mut recv).sent;
            let buffers = SharedBuffers { received, ..SharedBuffers::reading(send) };
            let all = rendezvous.arrive(rank, signature, buffers, accept)?;
            let _leave = Leave(rendezvous);
            all_reduce_into(&all, rank, dtype, op);
        }
        Transfer::AllGather { send, mut recv, counts } => {
            let all = rendezvous.arrive(rank, signature, SharedBuffers::reading(send), accept)?;
            let _leave = Leave(rendezvous);
            let width = recv.dtype().size();
            let mut rest = recv.bytes_mut();
            for (peer, &count) in all.iter().zip(counts) {
                let (part, after) = rest.split_at_mut(count * width);
                // SAFETY: within the round, and sent elements are only read.
                part.copy_from_slice(unsafe { peer.sent.read(0..count * width) });
                rest = after;
            }
        }
        Transfer::ReduceScatter { send, mut recv, counts, op } => {
            let all = rendezvous.arrive(rank, signature, SharedBuffers::reading(send), accept)?;
            let _leave = Leave(rendezvous);
            let width = recv.dtype().size();
            let start = counts[..rank].iter().sum::<usize>() * width;
            let range = start..start + counts[rank] * width;
            let parts: SmallVec<[&[u8]; 8]> = all
                .iter()
                // SAFETY: within the round, and sent elements are only read.
                .map(|peer| unsafe { peer.sent.read(range.clone()) })
                .collect();
            reduce_into(send.dtype(), op, &parts, recv.bytes_mut());
        }
        Transfer::Exchange { send, send_counts, mut recv, recv_counts } => {
            let buffers = SharedBuffers {
                send_counts: RawCounts::of(&send_counts),
                recv_counts: RawCounts::of(&recv_counts),
                ..SharedBuffers::reading(send)
            };
            let all = rendezvous
                .arrive(rank, signature, buffers, |all| check_counts(rendezvous, signature.name(), all))?;
            let _leave = Leave(rendezvous);
            let width = recv.dtype().size();
            let mut rest = recv.bytes_mut();
            for (peer, &count) in all.iter().zip(&*recv_counts) {
                let (part, after) = rest.split_at_mut(count * width);
                // SAFETY: within the round.
                let peer_counts = unsafe { peer.send_counts.read() };
                let start = peer_counts[..rank].iter().sum::<usize>() * width;
                // SAFETY: within the round, and sent elements are only read.
                part.copy_from_slice(unsafe { peer.sent.read(start..start + count * width) });
                rest = after;
            }
        }
        Transfer::Broadcast { mut buffer, root } => {
            let buffers = SharedBuffers::writing(&mut buffer);
            let all = rendezvous.arrive(rank, signature, buffers, accept)?;
            let _leave = Leave(rendezvous);
            if rank != root {
                let length = buffer.bytes().len();
                // SAFETY: within the round, and the root's buffer is only read.
                let sent = unsafe { all[root].sent.read(0..length) };
                buffer.bytes_mut().copy_from_slice(sent);
            }
        }
    }
    Ok(())
}

/// Reduces the `r`-th part of every buffer on rank `r`, which writes the result
/// to all of them.
fn all_reduce(all: &[SharedBuffers], rank: usize, dtype: DType, op: ReduceOp) {
    let range = part_of(all[rank].sent.length, all.len(), rank);
    let mut parts: SmallVec<[&mut [u8]; 8]> = all
        .iter()
        // SAFETY: within the round, and only this rank touches this part of
        // every buffer.
        .map(|peer| unsafe { peer.sent.write(range.clone()) })
        .collect();
    reduce_into_all(dtype, op, &mut parts);
}

/// Bytes that a rank reduces and copies to the others while they are in cache.
const BLOCK: usize = 32 << 10;

/// Reduces the `r`-th part of every send buffer on rank `r`, which writes the
/// result to every receive buffer.
fn all_reduce_into(all: &[SharedBuffers], rank: usize, dtype: DType, op: ReduceOp) {
    let whole = part_of(all[rank].sent.length, all.len(), rank);
    for start in whole.clone().step_by(BLOCK) {
        let range = start..(start + BLOCK).min(whole.end);
        let sent: SmallVec<[&[u8]; 8]> = all
            .iter()
            // SAFETY: within the round, and sent elements are only read.
            .map(|peer| unsafe { peer.sent.read(range.clone()) })
            .collect();
        // SAFETY: within the round, and only this rank touches this part of
        // every receive buffer.
        let own = unsafe { all[rank].received.write(range.clone()) };
        reduce_into(dtype, op, &sent, own);
        for (_, peer) in all.iter().enumerate().filter(|(peer, _)| *peer != rank) {
            // SAFETY: as above; it is another buffer than `own`.
            unsafe { peer.received.write(range.clone()) }.copy_from_slice(own);
        }
    }
}

/// The bytes that one rank reduces. Parts start at cache lines relative to the
/// start of the buffer, so that ranks seldom write to the same line.
fn part_of(length: usize, ranks: usize, rank: usize) -> std::ops::Range<usize> {
    let line = 64;
    let part = length.div_ceil(line).div_ceil(ranks) * line;
    (rank * part).min(length)..((rank + 1) * part).min(length)
}

/// Checks that every rank expects as many elements as every other sends it.
fn check_counts(rendezvous: &Rendezvous, call: &'static str, all: &[SharedBuffers]) -> Result<(), GangError> {
    for (from, sender) in all.iter().enumerate() {
        for (to, receiver) in all.iter().enumerate() {
            // SAFETY: all ranks have arrived and none has left.
            let sent = unsafe { sender.send_counts.read() }[to];
            // SAFETY: as above.
            let expected = unsafe { receiver.recv_counts.read() }[from];
            if sent != expected {
                let (from, to) = (rendezvous.member(from), rendezvous.member(to));
                return Err(GangError::CountMismatch { call, from, to, sent, expected });
            }
        }
    }
    Ok(())
}
